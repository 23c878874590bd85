// A checkpoint's run.json, as it is and with a matching checksum, so that the parser is tested, too, after the check of
// the sum.
#include <zlib.h>

#include <array>
#include <nlohmann/json.hpp>

#include "fuzz_folder.hpp"
#include "lib/base/files/file.hpp"
#include "lib/training/record/run_manifest.hpp"

namespace {

constexpr std::array<std::string_view, 3> names = {"run.json", ".metadata", "__0_0.distcp"};

void read(const std::filesystem::path& directory) {
  using namespace fsdp;
  fuzz::refusal_is_fine([&] {
    const auto manifest = read_run_manifest(directory);
    const auto again = run_manifest_from_json(run_manifest_to_json(manifest), "again");
    if (again.state.step != manifest.state.step || again.options != manifest.options) std::abort();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto& directory = memory.fill(fuzz::as_text(data, size), names);
  read(directory);
  if (!std::filesystem::exists(directory / "run.json")) return 0;
  const auto text = read_text_file(directory / "run.json");
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || fuzz::depth_of(text) > 64) return 0;
  json.erase("checksum");
  const auto dumped = json.dump();
  json["checksum"] = ::crc32(0, reinterpret_cast<const Bytef*>(dumped.data()), static_cast<uInt>(dumped.size()));
  memory.replace("run.json", json.dump());
  read(directory);
  return 0;
}
