#include "lib/chess/rules/pseudo_moves.hpp"

#include <span>

#include "lib/chess/rules/attacks.hpp"
#include "lib/chess/rules/steps.hpp"

namespace fsdp::chess {
namespace {

/// Generates the moves of one piece.
class PieceMoves {
 public:
  PieceMoves(const Board& board, Square from, std::vector<Move>& moves) : board_(board), from_(from), moves_(moves) {}

  void pawn() {
    const auto ahead = neighbor(from_, {0, up_});
    if (ahead != no_square && is_empty(ahead)) {
      pawn_to(ahead);
      const bool first_move = rank_of(from_) == home_rank(us_) + up_;
      const auto two_ahead = neighbor(ahead, {0, up_});
      if (first_move && is_empty(two_ahead)) pawn_to(two_ahead);
    }
    for (const int files : {-1, 1}) {
      const auto to = neighbor(from_, {files, up_});
      if (to != no_square && (is_theirs(to) || to == board_.en_passant)) pawn_to(to);
    }
  }

  void leap(std::span<const Step> steps) {
    for (const auto step : steps) {
      const auto to = neighbor(from_, step);
      if (to != no_square && (is_empty(to) || is_theirs(to))) moves_.push_back({from_, to});
    }
  }

  void slide(std::span<const Step> steps) {
    for (const auto step : steps) {
      auto to = neighbor(from_, step);
      for (; to != no_square && is_empty(to); to = neighbor(to, step)) moves_.push_back({from_, to});
      if (to != no_square && is_theirs(to)) moves_.push_back({from_, to});
    }
  }

  void castle(Wing wing) {
    if (!board_.may_castle_to(us_, wing)) return;
    const int toward_rook = wing == king_side ? 1 : -1;
    const auto rook = square_at(wing == king_side ? 7 : 0, home_rank(us_));
    for (auto between = from_ + toward_rook; between != rook; between += toward_rook) {
      if (!is_empty(between)) return;
    }
    const auto them = opponent(us_);
    if (is_attacked(board_, from_, them) || is_attacked(board_, from_ + toward_rook, them)) return;
    moves_.push_back({from_, from_ + 2 * toward_rook});
  }

 private:
  bool is_empty(Square square) const { return board_[square].kind == Kind::none; }
  bool is_theirs(Square square) const { return !is_empty(square) && board_[square].color != us_; }

  void pawn_to(Square to) {
    if (rank_of(to) != home_rank(opponent(us_))) return moves_.push_back({from_, to});
    for (const auto kind : {Kind::queen, Kind::rook, Kind::bishop, Kind::knight}) moves_.push_back({from_, to, kind});
  }

  const Board& board_;
  const Square from_;
  std::vector<Move>& moves_;
  const Color us_ = board_.to_move;
  const int up_ = forward(us_);
};

}  // namespace

void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves) {
  const auto piece = board[from];
  if (piece.color != board.to_move) return;
  PieceMoves of(board, from, moves);
  switch (piece.kind) {
    case Kind::none:
      return;
    case Kind::pawn:
      return of.pawn();
    case Kind::knight:
      return of.leap(knight_steps);
    case Kind::bishop:
      return of.slide(diagonal_steps);
    case Kind::rook:
      return of.slide(straight_steps);
    case Kind::queen:
      return of.slide(king_steps);
    case Kind::king:
      of.leap(king_steps);
      of.castle(king_side);
      of.castle(queen_side);
      return;
  }
}

bool is_safe(const Board& board, Move move) {
  auto after = board;
  apply(after, move);
  return !in_check(after, board.to_move);
}

}  // namespace fsdp::chess
