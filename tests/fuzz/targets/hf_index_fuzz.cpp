// A directory of safetensors files with an index.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"

namespace {
constexpr std::array<std::string_view, 5> names = {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                                   "model-00002-of-00002.safetensors", "model.safetensors",
                                                   "shard-00001-model-00001-of-00001.safetensors"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto& directory = memory.fill(fuzz::as_text(data, size), names);
  fuzz::read_source(directory);
  return 0;
}
