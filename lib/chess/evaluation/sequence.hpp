#pragma once
// Tokenizes a game of chess and maps ids to the moves that they spell. Free of LibTorch.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

/// The ids [first, end) of a sequence that spell a word and the space before it.
struct WordIds {
  std::size_t first = 0;
  std::size_t end = 0;
};

struct ChessSequence {
  std::vector<std::int32_t> ids;  ///< encoded like a document, without an end-of-text id
  std::vector<WordIds> words;     ///< the moves, then the result if the text has one
};

/// \param text  words separated by single spaces
/// \throws FormatError when decoding the ids does not give the text back, or an id spans the end of a word, because
/// then moves do not start at ids
ChessSequence encode_game(const Tokenizer& tokenizer, const std::string& text);

/// The set of a model's ids that end a word: ids that begin with white space, the end-of-text id, and ids unknown to
/// the tokenizer.
class WordEnds {
 public:
  /// \param num_ids  size of the model's vocabulary
  WordEnds(const Tokenizer& tokenizer, std::int64_t num_ids);

  bool begins_with_space(std::int32_t id) const { return kind(id) == Kind::space; }
  bool is_end_mark(std::int32_t id) const { return kind(id) == Kind::mark; }
  /// \return true when a word that precedes this id is complete
  bool ends_word(std::int32_t id) const { return kind(id) != Kind::inside; }

 private:
  enum class Kind : std::uint8_t { inside, space, mark };
  Kind kind(std::int32_t id) const { return kinds_[static_cast<std::size_t>(id)]; }

  std::vector<Kind> kinds_;
};

}  // namespace fsdp
