#pragma once
// The tokenizer in a GGUF file, in the form of Hugging Face's files. Keys: github.com/ggml-org/ggml, docs/gguf.md.
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp {

/// True for a GGUF file with the tokens of a vocabulary.
bool has_gguf_tokenizer(const std::filesystem::path& file);

/// tokenizer.json of the vocabulary: byte-level BPE ("gpt2") with the pre-tokenizer that its name stands for, or BPE
/// over characters with byte fallback ("llama"), whose merges follow from the scores. Ids without a token, which are of
/// the type "unused", have none here either. Marks go around a text where the keys, or llama.cpp without them, say so.
/// \throws FormatError naming the file and a key that is missing, of another type, or whose value is not known
nlohmann::json gguf_tokenizer_json(const std::filesystem::path& file);

/// tokenizer_config.json beside it: names of marks, and chat templates. A mark that is an ordinary token has no name,
/// because a text may hold it.
nlohmann::json gguf_tokenizer_config(const std::filesystem::path& file);

/// Both as texts by the names of the files.
std::map<std::string, std::string> gguf_tokenizer_files(const std::filesystem::path& file);

}  // namespace fsdp
