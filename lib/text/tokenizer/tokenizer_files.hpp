#pragma once
// A tokenizer as files in a directory: which kind they are of, and those of the built-in one.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

enum class TokenizerKind { none, sentencepiece, json, byte_level };

/// tokenizer.json is preferred, as by transformers, else tokenizer.model, else vocab.json with merges.txt.
TokenizerKind tokenizer_kind(const std::filesystem::path& directory);

/// The files in `directory` on whose contents the ids of texts depend, in a fixed order; those that are not there are
/// left out. Empty for the built-in tokenizer's name. Chat templates are not among them.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

/// Ids of the built-in tokenizer, "gpt2".
inline constexpr int gpt2_vocab_size = 50257;

/// Names and contents of the files with which others, transformers too, open GPT-2's tokenizer.
std::map<std::string, std::string> gpt2_tokenizer_files();

}  // namespace fsdp
