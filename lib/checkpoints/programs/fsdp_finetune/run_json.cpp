#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

/// \param run  without a checksum
std::uint32_t checksum(const nlohmann::json& run) {
  const auto text = json_text(run);
  return crc32(0, std::as_bytes(std::span(text)));
}

}  // namespace

nlohmann::json read_run_json(const std::filesystem::path& file) {
  try {
    auto run = parse_json(read_text_file(file, kMostRunJsonBytes), file.string());
    const auto saved = run.at("checksum");
    run.erase("checksum");
    if (saved == checksum(run)) return run;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(file.string() + ": not a valid run.json: " + error.what());
  }
  throw FormatError(file.string() + ": its checksum does not match: the file was changed");
}

std::string run_json_text(nlohmann::json run) {
  run["checksum"] = checksum(run);
  return json_text(run, 1) + "\n";
}

}  // namespace fsdp
