#pragma once
// Adds tokens to a tokenizer's files: --add-tokens.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/tokenizers/vocabulary/added_tokens.hpp"

namespace fsdp {

/// Reads a list of tokens: a JSON list of names, or of objects as in tokenizer.json's added_tokens (content, special,
/// normalized, single_word, lstrip, rstrip); or text with a name per line. A name alone is no special token: it is
/// found in texts. \throws FormatError naming the file and what is wrong; MissingInput
std::vector<AddedToken> read_new_tokens(const std::filesystem::path& file);

/// The files of a tokenizer with more tokens.
struct GrownTokenizer {
  std::map<std::string, std::string> files;  ///< contents by name, all files that decide the ids of texts
  std::vector<AddedToken> added;             ///< those that the tokenizer did not have, with their ids
};

/// Gives each token that is neither an added token nor a piece of the vocabulary the next id, as add_tokens() of
/// transformers does. \param name  as open_tokenizer() takes it. \throws FormatError; what open_tokenizer() throws
GrownTokenizer grow_tokenizer(const std::string& name, const std::vector<AddedToken>& tokens);

}  // namespace fsdp
