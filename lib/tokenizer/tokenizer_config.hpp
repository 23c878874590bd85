#pragma once
// What lies beside a vocabulary: tokenizer_config.json and added_tokens.json.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/tokenizer/added_tokens.hpp"
#include "lib/tokenizer/json_file.hpp"
#include "lib/tokenizer/token_texts.hpp"

namespace fsdp {

/// Names that stand for a mark and the marks to add; nothing where the file says nothing.
struct TokenizerConfig {
  std::vector<AddedToken> added_tokens;  ///< by id, each id once
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_prefix_space;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::string prefix_token = "▁<PRE>";  ///< these four are CodeLlama's names for infilling
  std::string suffix_token = "▁<SUF>";
  std::string middle_token = "▁<MID>";
  std::string end_token = "▁<EOT>";
  std::string where;  ///< the file that names the added tokens, for errors
};

/// An empty one when the directory has neither file.
/// \throws IoError; FormatError
TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory);

/// One entry of a list of added tokens but for its id.
AddedToken read_added_token(const JsonValue& value);

/// Puts the added tokens into a vocabulary: an id beyond it makes it larger.
/// \throws FormatError for an id that is negative or too far beyond to be meant
void add_to_vocabulary(const std::vector<AddedToken>& tokens, const std::string& where, TokenTexts& texts);

/// The id that `name` has as an added token or else as a piece.
std::optional<std::int32_t> find_token(const std::string& name, const std::vector<AddedToken>& tokens,
                                       const PieceIds& pieces);

}  // namespace fsdp
