#pragma once
// Splits and replays games given as text: "e2e4 e7e5 ... 1-0".
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chess/rules/position.hpp"

namespace fsdp::chess {

struct GameText {
  std::vector<std::string_view> moves;  ///< views into the text, which must outlive them; not parsed yet
  std::optional<GameResult> result;     ///< the last word, if it is a result
};

/// Splits at ASCII white space. A result before the last word stays among the moves, where it counts as illegal.
GameText split_game(std::string_view text);

struct Replay {
  /// number of legal moves before the first illegal one, which is also the index of the illegal one
  std::size_t legal_moves = 0;
  Position position;  ///< position after the legal moves
  /// Location and reason of the first illegal move, counting moves of both sides from 1: "move 17 'e1g1' is not legal
  /// here: e1 is empty". Empty when all moves are legal.
  std::string problem;
};

/// Plays UCI moves in sequence. The replay continues after a draw by rule as long as moves are legal.
Replay replay(std::span<const std::string_view> moves, const Position& start = Position());

}  // namespace fsdp::chess
