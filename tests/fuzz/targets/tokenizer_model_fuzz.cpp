// A model directory with SentencePiece's tokenizer.model, which its library loads after our checks.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::array<std::string_view, 3> names = {"tokenizer.model", "tokenizer_config.json",
                                                            "added_tokens.json"};
  static fsdp::fuzz::MemoryDirectory memory;
  fsdp::fuzz::use_tokenizer(memory.fill(fsdp::fuzz::as_text(data, size), names));
  return 0;
}
