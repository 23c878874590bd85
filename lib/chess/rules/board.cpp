#include "lib/chess/rules/board.hpp"

#include <cstdlib>

namespace fsdp::chess {
namespace {

/// A king or rook that leaves its original square, or a rook that is captured there, permanently loses castling rights.
void end_castling_from(Board& board, Square square) {
  for (const auto color : {Color::white, Color::black}) {
    auto& may_castle = board.may_castle[static_cast<std::size_t>(color)];
    const int rank = home_rank(color);
    if (square == square_at(4, rank)) may_castle = {false, false};
    if (square == square_at(7, rank)) may_castle[king_side] = false;
    if (square == square_at(0, rank)) may_castle[queen_side] = false;
  }
}

void shift(Board& board, Square from, Square to) {
  put(board, to, board[from]);
  board[from] = {};
}

}  // namespace

void put(Board& board, Square square, Piece piece) {
  board[square] = piece;
  if (piece.kind == Kind::king) board.kings[static_cast<std::size_t>(piece.color)] = square;
}

void apply(Board& board, Move move) {
  const Piece moved = board[move.from];
  const bool pawn = moved.kind == Kind::pawn;
  const bool captures = board[move.to].kind != Kind::none;
  const int from_rank = rank_of(move.from), to_rank = rank_of(move.to);

  shift(board, move.from, move.to);
  if (pawn && move.to == board.en_passant) board[square_at(file_of(move.to), from_rank)] = {};
  if (move.promotion != Kind::none) board[move.to].kind = move.promotion;
  if (moved.kind == Kind::king && std::abs(file_of(move.to) - file_of(move.from)) == 2) {
    const bool to_king_side = file_of(move.to) > file_of(move.from);
    shift(board, square_at(to_king_side ? 7 : 0, to_rank), square_at(to_king_side ? 5 : 3, to_rank));
  }

  end_castling_from(board, move.from);
  end_castling_from(board, move.to);
  const bool advances_two = pawn && std::abs(to_rank - from_rank) == 2;
  board.en_passant = advances_two ? square_at(file_of(move.to), (from_rank + to_rank) / 2) : no_square;
  board.halfmove_clock = pawn || captures ? 0 : board.halfmove_clock + 1;
  if (board.to_move == Color::black) ++board.fullmove_number;
  board.to_move = opponent(board.to_move);
}

}  // namespace fsdp::chess
