// A model directory with tokenizer.json, or vocab.json and merges.txt, and the configuration files beside them.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::array<std::string_view, 5> names = {"tokenizer.json", "tokenizer_config.json",
                                                            "added_tokens.json", "vocab.json", "merges.txt"};
  static fsdp::fuzz::MemoryDirectory memory;
  fsdp::fuzz::use_tokenizer(memory.fill(fsdp::fuzz::as_text(data, size), names));
  return 0;
}
