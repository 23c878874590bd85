#pragma once
#include <vector>

#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

/// Appends the moves the piece on `from` has if it does not matter whether they leave its own king in check: none when
/// it is not the mover's piece. Castling is complete but for the safety of the king's last square.
void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves);

/// Whether the move, one of the above, leaves its own king safe.
bool is_safe(const Board& board, Move move);

}  // namespace fsdp::chess
