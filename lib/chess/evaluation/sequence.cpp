#include "lib/chess/evaluation/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/engine/runtime/model_text.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

/// \return the offset of the end of each word in `text`, in bytes
std::vector<std::size_t> word_ends(const std::string& text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || text[i + 1] == ' ') ends.push_back(i + 1);
  }
  return ends;
}

}  // namespace

ChessSequence encode_game(const Tokenizer& tokenizer, const std::string& text) {
  ChessSequence game;
  game.ids = prompt_ids(tokenizer, text);
  const auto bos = tokenizer.bos_id();
  std::size_t id = !game.ids.empty() && bos && game.ids.front() == *bos ? 1 : 0;

  std::string spelled;
  std::vector<std::size_t> ends(id, 0);  // end of each id in `spelled`, in bytes
  for (auto i = id; i < game.ids.size(); ++i) {
    spelled += tokenizer.decode_one(game.ids[i]);
    ends.push_back(spelled.size());
  }
  // Some tokenizers insert a space before every text.
  const std::size_t shift = spelled.size() == text.size() + 1 ? 1 : 0;
  if (spelled.substr(shift) != text || (shift == 1 && spelled[0] != ' ')) {
    throw FormatError(
        fmt::format("{} does not give back the text of a game: '{}'", tokenizer.description(), text.substr(0, 40)));
  }
  for (const auto end : word_ends(text)) {
    WordIds word{id, id};
    while (word.end < ends.size() && ends[word.end] <= end + shift) ++word.end;
    if (word.end == word.first || ends[word.end - 1] != end + shift) {
      throw FormatError(
          fmt::format("{} has a piece that holds the end of the word before '{}' and what follows: moves "
                      "cannot be told apart",
                      tokenizer.description(), text.substr(end, 8)));
    }
    id = word.end;
    game.words.push_back(word);
  }
  return game;
}

WordEnds::WordEnds(const Tokenizer& tokenizer, std::int64_t num_ids)
    : kinds_(static_cast<std::size_t>(num_ids), Kind::mark) {
  const auto known = std::min(num_ids, tokenizer.vocab_size());
  for (std::int64_t i = 0; i < known; ++i) {
    const auto text = tokenizer.decode_one(static_cast<std::int32_t>(i));
    const bool space = !text.empty() && kWhiteSpace.find(text[0]) != std::string_view::npos;
    kinds_[static_cast<std::size_t>(i)] = space ? Kind::space : Kind::inside;
  }
  if (const auto end = tokenizer.eos_id(); end && *end < num_ids) kinds_[static_cast<std::size_t>(*end)] = Kind::mark;
}

}  // namespace fsdp
