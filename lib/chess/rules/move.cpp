#include "lib/chess/rules/move.hpp"

namespace fsdp::chess {
namespace {

constexpr std::string_view promotion_letters = "nbrq";  // in the order of Kind, from Kind::knight on

}  // namespace

std::optional<Square> parse_square(std::string_view text) {
  if (text.size() != 2 || text[0] < 'a' || text[0] > 'h' || text[1] < '1' || text[1] > '8') return std::nullopt;
  return square_at(text[0] - 'a', text[1] - '1');
}

std::string to_string(Square square) {
  return {static_cast<char>('a' + file_of(square)), static_cast<char>('1' + rank_of(square))};
}

std::optional<Move> parse_uci(std::string_view text) {
  if (text.size() != 4 && text.size() != 5) return std::nullopt;
  const auto from = parse_square(text.substr(0, 2)), to = parse_square(text.substr(2, 2));
  if (!from || !to) return std::nullopt;
  if (text.size() == 4) return Move{*from, *to};
  const auto letter = promotion_letters.find(text[4]);
  if (letter == std::string_view::npos) return std::nullopt;
  return Move{*from, *to, static_cast<Kind>(static_cast<int>(Kind::knight) + static_cast<int>(letter))};
}

std::string to_uci(Move move) {
  std::string text = to_string(move.from) + to_string(move.to);
  if (move.promotion != Kind::none) {
    text += promotion_letters.at(static_cast<std::size_t>(move.promotion) - static_cast<std::size_t>(Kind::knight));
  }
  return text;
}

}  // namespace fsdp::chess
