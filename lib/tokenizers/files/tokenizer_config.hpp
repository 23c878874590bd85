#pragma once
// Settings from the files beside a vocabulary (tokenizer_config.json, special_tokens_map.json, added_tokens.json, and
// the tokenizer's keys of config.json), combined as by AutoTokenizer of transformers 5.23.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/vocabulary/added_tokens.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"

namespace fsdp {

/// A special token that the files name without an id.
struct NamedToken {
  AddedToken token;    ///< id is kNoId
  bool by_key = true;  ///< named by a key of its own (pad_token, image_token), not in a list
  std::string key;     ///< that key; empty for a token of a list
};

/// Names of marks and flags for adding them; nothing where the files state nothing.
struct TokenizerConfig {
  std::string hub_class;                 ///< tokenizer_class without "Fast", as the files name it; empty: not named
  std::string token_class;               ///< class that AutoTokenizer takes for hub_class and model_type of config.json
  std::vector<AddedToken> added_tokens;  ///< by id, each id once
  bool has_decoder = false;              ///< added_tokens come from added_tokens_decoder, else from added_tokens.json
  std::vector<NamedToken> named_tokens;  ///< in the order in which they are added
  std::optional<bool> legacy;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_prefix_space;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::vector<std::string> null_tokens;  ///< keys such as bos_token that a file sets to null
  std::string prefix_token = "▁<PRE>";   ///< names of CodeLlama's four infilling marks
  std::string suffix_token = "▁<SUF>";
  std::string middle_token = "▁<MID>";
  std::string end_token = "▁<EOT>";
  /// True if a file sets this key to null: there is no such token, and none is guessed.
  bool is_null(std::string_view key) const { return std::ranges::find(null_tokens, key) != null_tokens.end(); }

  std::string file;   ///< tokenizer_config.json, for errors
  std::string where;  ///< the file that names the added tokens, for errors
};

/// Reads the files of a directory; returns an empty config when there are none. special_tokens_map.json and
/// added_tokens.json are read only when tokenizer_config.json has no added_tokens_decoder.
/// \throws IoError; FormatError
TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory);

/// True for classes that make the ByteLevel step themselves and ignore its flag in tokenizer.json.
bool makes_byte_level_step(const std::string& token_class);

/// \throws FormatError that add_prefix_space is not supported for byte-level vocabularies, naming file and key
[[noreturn]] void refuse_prefix_space(const TokenizerConfig& config);

/// Reads an entry of a list of added tokens, without its id.
AddedToken read_added_token(const JsonValue& value);

/// Puts the added tokens into a vocabulary, which grows for ids beyond its end.
/// \throws FormatError for an id that is negative or implausibly large
void add_to_vocabulary(const std::vector<AddedToken>& tokens, const std::string& where, TokenTexts& texts);

// Ids of the added tokens of a vocabulary, from all files that name them.
//
// Source: src/tokenizer/added_vocabulary.rs of tokenizers 0.23; __init__ of TokenizersBackend in transformers 5.23.

/// A vocabulary without its added tokens.
struct VocabularyPieces {
  std::string where;  ///< file of the vocabulary, for errors
  std::int64_t count = 0;
  std::function<std::optional<std::int32_t>(const std::string&)> find;  ///< id of a piece, spelled as in the file
  bool renames = false;  ///< the config may rename pieces, as for tokenizer.model
};

/// Returns the added tokens of the vocabulary's file with the additions and changes of the files beside it, sorted by
/// id, each once. A name that is a piece has the id of the piece; all others have the next ids in order. \throws
/// FormatError naming file, token and ids where a file states another id than the tokenizers library gives
std::vector<AddedToken> all_added_tokens(const VocabularyPieces& pieces, const std::vector<AddedToken>& of_file,
                                         const TokenizerConfig& config);

}  // namespace fsdp
