// A .pt file, zip or legacy, as a user passes it to the programs.
#include "fuzz_source.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fsdp::fuzz::MemoryFile memory;
  fsdp::fuzz::read_source(memory.fill(fsdp::fuzz::as_text(data, size)));
  return 0;
}
