// Files of fsdp-download in a cache that others may write: listings, manifests, journals of partial files.
#include <array>

#include "fuzz_folder.hpp"
#include "lib/base/files/file.hpp"
#include "lib/hub/partial_file.hpp"
#include "lib/hub/repo.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace {
constexpr std::array<std::string_view, 3> names = {"tree.json", "manifest.json", "journal"};
constexpr std::uint64_t journal_bytes = 1'000'000;
const std::string journal_hash(40, 'a');  // as in seeds.py

/// Aborts if a listing leads to a path that must not be written.
void check(const std::vector<fsdp::RemoteFile>& files) {
  for (const auto& file : files) {
    if (file.path.empty() || file.path.front() == '/') std::abort();
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto& directory = memory.fill(fuzz::as_text(data, size), names);
  fuzz::refusal_is_fine([&] {
    if (const auto files = tree_from_json(read_text_file(directory / "tree.json"))) {
      check(*files);
      if (!tree_from_json(tree_to_json(*files))) std::abort();
    }
  });
  fuzz::refusal_is_fine([&] {
    if (const auto manifest = read_manifest(directory / "manifest.json")) check(manifest->files);
  });
  fuzz::refusal_is_fine([&] {
    for (const auto& [range, crc32] : read_journal(directory / "journal", journal_hash, journal_bytes)) {
      if (range.begin >= range.end || range.end > journal_bytes || range.size() > kLongestPieceBytes) std::abort();
    }
  });
  return 0;
}
