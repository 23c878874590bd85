#pragma once
// tokenizer.json of Hugging Face's tokenizers library.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/added_tokens.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// `model` and `added_tokens` of the file, spelled as there.
struct JsonVocabulary {
  std::vector<std::string> pieces;  ///< by id; empty ones are gaps
  std::vector<std::pair<std::string, std::string>> merges;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::vector<AddedToken> added;  ///< with the additions and changes of the config
};
/// \param root  the file. \throws FormatError
JsonVocabulary read_json_vocabulary(const JsonValue& root, const TokenizerConfig& config);

/// Reads byte-level BPE (GPT-2's and Llama 3's kind) and BPE with byte fallback (Llama 2's and CodeLlama's kind). A
/// document's marks are those of its post-processor, whatever the config says. Added tokens that are not special are
/// found in texts, as the library does.
/// \param config  names of the marks and added tokens beyond those of the file
/// \throws IoError; FormatError naming file, place and what is wrong or not supported
std::unique_ptr<Tokenizer> make_tokenizer_json(const std::filesystem::path& file, const TokenizerConfig& config = {});
/// The same for the contents of a file. \param where  names them in errors
std::unique_ptr<Tokenizer> make_tokenizer_json(const nlohmann::json& json, const std::string& where,
                                               const TokenizerConfig& config);

}  // namespace fsdp
