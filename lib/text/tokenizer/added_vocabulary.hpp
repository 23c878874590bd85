#pragma once
// The added tokens of a vocabulary with their ids, from all the files that name them.
//
// Source: src/tokenizer/added_vocabulary.rs of tokenizers 0.23; __init__ of TokenizersBackend in transformers 5.23.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/text/tokenizer/added_tokens.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

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
