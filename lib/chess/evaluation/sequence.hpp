#pragma once
// A game of chess as a model sees it: ids, and which of them spell which move. Free of LibTorch.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

/// Ids [first, end) of a sequence spell a word and the space before it.
struct WordIds {
  std::size_t first = 0;
  std::size_t end = 0;
};

struct ChessSequence {
  std::vector<std::int32_t> ids;  ///< as the tokenizer encodes a document, without a mark at its end
  std::vector<WordIds> words;     ///< the moves, then the result where the text has one
};

/// \param text  words with one space between them
/// \throws FormatError when the tokenizer does not give the text back, or has ids that span the end of a word: then
///         no id says where a move begins
ChessSequence encode_game(const Tokenizer& tokenizer, const std::string& text);

/// Which ids of a model end a word: those that begin with white space, the mark at a text's end, and what the tokenizer
/// does not know.
class WordEnds {
 public:
  /// \param num_ids  of the model
  WordEnds(const Tokenizer& tokenizer, std::int64_t num_ids);

  bool begins_with_space(std::int32_t id) const { return kind(id) == Kind::space; }
  bool is_end_mark(std::int32_t id) const { return kind(id) == Kind::mark; }
  /// True when a word is complete before this id.
  bool ends_word(std::int32_t id) const { return kind(id) != Kind::inside; }

 private:
  enum class Kind : std::uint8_t { inside, space, mark };
  Kind kind(std::int32_t id) const { return kinds_[static_cast<std::size_t>(id)]; }

  std::vector<Kind> kinds_;
};

}  // namespace fsdp
