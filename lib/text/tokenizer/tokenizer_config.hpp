#pragma once
// The files beside a vocabulary: tokenizer_config.json, special_tokens_map.json, added_tokens.json, and what
// config.json says of the tokenizer. One description of all of them, as AutoTokenizer of transformers 5.23 reads them.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/text/tokenizer/added_tokens.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/token_texts.hpp"

namespace fsdp {

/// A special token that the files name without an id.
struct NamedToken {
  AddedToken token;    ///< id is kNoId
  bool by_key = true;  ///< by a key of its own (pad_token, image_token), rather than in a list
};

/// Names that stand for a mark and the marks to add; nothing where the file says nothing.
struct TokenizerConfig {
  std::string hub_class;                 ///< tokenizer_class without "Fast", as the files name it; empty: not named
  std::string token_class;               ///< the class that AutoTokenizer takes for it and config.json's model_type
  std::vector<AddedToken> added_tokens;  ///< by id, each id once
  bool has_decoder = false;              ///< they are added_tokens_decoder's, else added_tokens.json's
  std::vector<NamedToken> named_tokens;  ///< in the order in which they are added
  std::optional<bool> legacy;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_prefix_space;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::string prefix_token = "▁<PRE>";  ///< these four are CodeLlama's names for infilling
  std::string suffix_token = "▁<SUF>";
  std::string middle_token = "▁<MID>";
  std::string end_token = "▁<EOT>";
  std::string file;   ///< tokenizer_config.json, for errors
  std::string where;  ///< the file that names the added tokens, for errors
};

/// An empty one when the directory has none of the files. special_tokens_map.json and added_tokens.json count where
/// tokenizer_config.json has no added_tokens_decoder.
/// \throws IoError; FormatError
TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory);

/// True for the classes that make GPT-2's step of bytes themselves, whatever tokenizer.json says of its flag.
bool makes_byte_level_step(const std::string& token_class);

/// \throws FormatError: add_prefix_space of a byte-level vocabulary, by file and key
[[noreturn]] void refuse_prefix_space(const TokenizerConfig& config);

/// One entry of a list of added tokens but for its id.
AddedToken read_added_token(const JsonValue& value);

/// Puts the added tokens into a vocabulary: an id beyond it makes it larger.
/// \throws FormatError for an id that is negative or too far beyond to be meant
void add_to_vocabulary(const std::vector<AddedToken>& tokens, const std::string& where, TokenTexts& texts);

// The added tokens of a vocabulary with their ids, from all the files that name them.
//
// Source: src/tokenizer/added_vocabulary.rs of tokenizers 0.23; __init__ of TokenizersBackend in transformers 5.23.

/// A vocabulary without its added tokens.
struct VocabularyPieces {
  std::string where;  ///< its file, for errors
  std::int64_t count = 0;
  std::function<std::optional<std::int32_t>(const std::string&)> find;  ///< the id of a piece as the file spells it
  bool renames = false;  ///< the config may give a piece another name, as it may of a tokenizer.model
};

/// The added tokens of the vocabulary's file, then those that the files beside it add or change. A name that is a piece
/// has its id; all others have the next ids in order. Sorted by id, each once. \throws FormatError naming file, token
/// and ids where a file writes another id than the library gives
std::vector<AddedToken> all_added_tokens(const VocabularyPieces& pieces, const std::vector<AddedToken>& of_file,
                                         const TokenizerConfig& config);

}  // namespace fsdp
