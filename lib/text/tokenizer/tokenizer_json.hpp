#pragma once
// tokenizer.json of Hugging Face's tokenizers library.
#include <filesystem>
#include <memory>

#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// Reads byte-level BPE (GPT-2's and Llama 3's kind) and BPE with byte fallback (Llama 2's and CodeLlama's kind). A
/// document's marks are those of its post-processor, whatever the config says. Added tokens that are not special are
/// found in texts, as the library does.
/// \param config  names of the marks and added tokens beyond those of the file
/// \throws IoError; FormatError naming file, place and what is wrong or not supported
std::unique_ptr<Tokenizer> make_tokenizer_json(const std::filesystem::path& file, const TokenizerConfig& config = {});

}  // namespace fsdp
