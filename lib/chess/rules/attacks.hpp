#pragma once
#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

/// Whether a piece of color `by` could take on `square` if its own king's safety did not matter.
bool is_attacked(const Board& board, Square square, Color by);

/// Whether the king of `color` stands in check. The board must have that king.
bool in_check(const Board& board, Color color);

}  // namespace fsdp::chess
