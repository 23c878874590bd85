// A DCP directory: .metadata (or one per rank) and data files.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"

namespace {
constexpr std::array<std::string_view, 6> names = {".metadata",    "__0_0.distcp", "__1_0.distcp",
                                                   "__0.metadata", "__1.metadata", "other"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto& directory = memory.fill(fuzz::as_text(data, size), names);
  fuzz::read_source(directory);
  return 0;
}
