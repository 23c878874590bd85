#include "lib/files/write/run_json.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/files/formats/crc32.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t limit_bytes = 64u << 20;

/// Of the text without its own checksum, as lib/training/record/run_manifest.cpp computes it.
std::uint32_t checksum(const nlohmann::json& manifest) {
  const auto text = json_text(manifest);
  return crc32(0, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

std::string updated_run_json(const std::string& text, const std::string& file, int world_size,
                             std::span<const WrittenFile> files) {
  try {
    auto manifest = parse_json(text, file);
    const auto saved = manifest.at("checksum").get<std::uint32_t>();
    manifest.erase("checksum");
    if (checksum(manifest) != saved) {
      throw FormatError(file +
                        ": its checksum does not match: the file was changed; move it away to convert without it");
    }
    manifest["world_size"] = world_size;
    auto& list = manifest["files"] = nlohmann::json::object();
    for (const auto& written : files) {
      list[written.name] = {{"size_bytes", written.size_bytes}, {"crc32", written.crc32}};
    }
    manifest["checksum"] = checksum(manifest);
    return json_text(manifest, 1) + "\n";
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(file + ": not a valid run.json: " + error.what());
  }
}

void carry_run_json(DcpTargetOptions& options, const std::filesystem::path& directory) {
  const auto path = directory / "run.json";
  if (directory.empty() || !std::filesystem::exists(path)) return;
  const auto text = read_text_file(path, limit_bytes);
  updated_run_json(text, path.string(), 1, {});  // a damaged one is refused before anything is copied
  options.extra_names = {"run.json"};
  options.extra_files = [text, path = path.string(), ranks = options.num_shards](std::span<const WrittenFile> files) {
    return std::vector<std::string>{updated_run_json(text, path, ranks, files)};
  };
}

}  // namespace fsdp
