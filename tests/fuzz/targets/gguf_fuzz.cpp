// One GGUF file: header and data.
#include "fuzz_source.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fsdp::fuzz::MemoryFile memory;
  fsdp::fuzz::read_source(memory.fill("GGUF" + std::string(fsdp::fuzz::as_text(data, size))));
  return 0;
}
