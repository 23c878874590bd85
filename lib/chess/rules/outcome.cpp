#include "lib/chess/rules/outcome.hpp"

#include <stdexcept>

namespace fsdp::chess {

std::string_view to_string(GameResult result) {
  switch (result) {
    case GameResult::white_wins:
      return "1-0";
    case GameResult::black_wins:
      return "0-1";
    case GameResult::draw:
      return "1/2-1/2";
    case GameResult::unfinished:
      return "*";
  }
  throw std::logic_error("not a GameResult");
}

std::optional<GameResult> parse_result(std::string_view text) {
  for (const auto result : {GameResult::white_wins, GameResult::black_wins, GameResult::draw, GameResult::unfinished}) {
    if (text == to_string(result)) return result;
  }
  return std::nullopt;
}

std::string_view to_string(Termination termination) {
  switch (termination) {
    case Termination::checkmate:
      return "CHECKMATE";
    case Termination::stalemate:
      return "STALEMATE";
    case Termination::insufficient_material:
      return "INSUFFICIENT_MATERIAL";
    case Termination::seventyfive_moves:
      return "SEVENTYFIVE_MOVES";
  }
  throw std::logic_error("not a Termination");
}

}  // namespace fsdp::chess
