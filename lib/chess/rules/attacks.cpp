#include "lib/chess/rules/attacks.hpp"

#include "lib/chess/rules/steps.hpp"

namespace fsdp::chess {
namespace {

bool holds(const Board& board, Square square, Piece piece) { return square != no_square && board[square] == piece; }

/// Follows `steps` from `square` to the first piece and tests whether it is a queen or the given kind of slider of
/// color `by`.
bool attacked_along(const Board& board, Square square, std::span<const Step> steps, Kind slider, Color by) {
  for (const auto step : steps) {
    auto at = neighbor(square, step);
    while (at != no_square && board[at].kind == Kind::none) at = neighbor(at, step);
    if (holds(board, at, {slider, by}) || holds(board, at, {Kind::queen, by})) return true;
  }
  return false;
}

}  // namespace

bool is_attacked(const Board& board, Square square, Color by) {
  for (const int files : {-1, 1}) {
    if (holds(board, neighbor(square, {files, -forward(by)}), {Kind::pawn, by})) return true;
  }
  for (const auto step : knight_steps) {
    if (holds(board, neighbor(square, step), {Kind::knight, by})) return true;
  }
  for (const auto step : king_steps) {
    if (holds(board, neighbor(square, step), {Kind::king, by})) return true;
  }
  return attacked_along(board, square, straight_steps, Kind::rook, by) ||
         attacked_along(board, square, diagonal_steps, Kind::bishop, by);
}

bool in_check(const Board& board, Color color) { return is_attacked(board, board.king(color), opponent(color)); }

}  // namespace fsdp::chess
