#pragma once
// Games as the text a model reads and writes: "e2e4 e7e5 ... 1-0".
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chess/rules/outcome.hpp"
#include "lib/chess/rules/position.hpp"

namespace fsdp::chess {

struct GameText {
  std::vector<std::string_view> moves;  ///< words of the text, which must outlive them; not looked at yet
  std::optional<GameResult> result;     ///< the last word, when it is one
};

/// Splits at white space (ASCII). A result that is not the last word stays among the moves, where it is not legal.
GameText split_game(std::string_view text);

struct Replay {
  std::size_t legal_moves = 0;  ///< how many there are up to the first illegal one, and so its index in the text
  Position position;            ///< after them
  /// Where and why it ends before the text does, counting the moves of both sides from 1: "move 17 'e1g1' is not legal
  /// here: e1 is empty". Empty when all moves are legal.
  std::string problem;
};

/// Plays UCI moves one after another. A game that a rule ends as a draw can go on here as long as moves are legal.
Replay replay(std::span<const std::string_view> moves, const Position& start = Position());

}  // namespace fsdp::chess
