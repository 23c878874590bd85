#pragma once
// A tokenizer by name: the one that is built in, or a model directory's.
#include <filesystem>
#include <memory>
#include <string>

#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

/// \param name  "gpt2" (built in), or a model's directory: tokenizer.json is preferred, which transformers' fast
///              tokenizers take, else (or where it has what is not supported) SentencePiece's tokenizer.model, else
///              vocab.json + merges.txt. tokenizer_config.json and added_tokens.json beside them say which marks are
///              added and which ids lie beyond the vocabulary proper.
/// \throws IoError naming the directory and what was looked for when there is none; FormatError
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

/// True when `directory` holds files that open_tokenizer() reads.
bool has_tokenizer(const std::filesystem::path& directory);

}  // namespace fsdp
