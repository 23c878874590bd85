#pragma once
#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

/// Whether a piece of color `by` attacks `square`; pinned pieces attack, too.
bool is_attacked(const Board& board, Square square, Color by);

/// Whether the king of `color` is in check. \pre the board has this king
bool in_check(const Board& board, Color color);

}  // namespace fsdp::chess
