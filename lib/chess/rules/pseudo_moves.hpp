#pragma once
#include <vector>

#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

/// Appends the moves of the piece on `from`, including moves that leave its own king in check; none if the piece does
/// not belong to the side to move. For castling, everything is checked but the safety of the king's final square.
void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves);

/// Whether a move of add_pseudo_moves() leaves its own king safe.
bool is_safe(const Board& board, Move move);

}  // namespace fsdp::chess
