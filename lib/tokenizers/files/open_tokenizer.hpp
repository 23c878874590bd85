#pragma once
// Opens tokenizers by name: the built-in one, or that of a model directory.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// Name and number of ids of the built-in tokenizer, GPT-2's.
inline constexpr const char* kBuiltInTokenizer = "gpt2";
inline constexpr int gpt2_vocab_size = 50257;

/// \param name  kBuiltInTokenizer, a GGUF file, or the directory of a model. Read is tokenizer.json, as by the fast
/// tokenizers of
///   transformers; else, or if it contains something unsupported, SentencePiece's tokenizer.model; else vocab.json with
///   merges.txt. tokenizer_config.json and added_tokens.json beside them define marks and added tokens.
/// \throws IoError naming the directory and the expected files when there is none; FormatError
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

/// True when `directory` holds files that open_tokenizer() reads, or is a GGUF file with a tokenizer.
bool has_tokenizer(const std::filesystem::path& directory);

/// Lists the existing files in `directory` that decide the ids of texts, in a fixed order. Empty for kBuiltInTokenizer.
/// Chat templates are not included.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

/// Copies the files of tokenizer_files() and chat_template.jinja into another folder; not config.json, which would make
/// a model's of it. \throws IoError
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

/// Whether two folders hold the same files of tokenizer_files(), but for config.json.
bool same_tokenizer_files(const std::filesystem::path& a, const std::filesystem::path& b);

/// Texts of the special tokens by the names under which chat templates read them (bos_token, image_token): of the files
/// beside the vocabulary, and where they say nothing of the SentencePiece model itself. Empty for kBuiltInTokenizer.
/// Source: special_tokens_map of transformers 5.23. \throws IoError; FormatError
std::map<std::string, std::string> named_special_tokens(const std::string& name);

/// True when `directory` has a tokenizer.model and no tokenizer.json, so that readers of it need sentencepiece.
bool is_sentencepiece_alone(const std::filesystem::path& directory);

/// Names and contents of the files with which other programs, such as transformers, open GPT-2's tokenizer.
std::map<std::string, std::string> gpt2_tokenizer_files();

}  // namespace fsdp
