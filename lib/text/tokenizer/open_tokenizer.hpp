#pragma once
// A tokenizer by name: the one that is built in, or a model directory's.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

/// Name and number of ids of the built-in tokenizer, GPT-2's.
inline constexpr const char* kBuiltInTokenizer = "gpt2";
inline constexpr int gpt2_vocab_size = 50257;

/// \param name  kBuiltInTokenizer, or a model's directory: tokenizer.json is preferred, which transformers' fast
///              tokenizers take, else (or where it has what is not supported) SentencePiece's tokenizer.model, else
///              vocab.json + merges.txt. tokenizer_config.json and added_tokens.json beside them say which marks are
///              added and which ids lie beyond the vocabulary proper.
/// \throws IoError naming the directory and what was looked for when there is none; FormatError
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

/// True when `directory` holds files that open_tokenizer() reads.
bool has_tokenizer(const std::filesystem::path& directory);

/// The files in `directory` on whose contents the ids of texts depend, in a fixed order; those that are not there are
/// left out. Empty for the built-in tokenizer's name. Chat templates are not among them.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

/// Names and contents of the files with which others, transformers too, open GPT-2's tokenizer.
std::map<std::string, std::string> gpt2_tokenizer_files();

}  // namespace fsdp
