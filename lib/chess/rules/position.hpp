#pragma once
// The rules of chess: which moves a position allows and when it ends the game.
// Source: FIDE Laws of Chess, 2023, articles 3, 5 and 9.6.2.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chess/rules/board.hpp"
#include "lib/chess/rules/move.hpp"
#include "lib/chess/rules/outcome.hpp"

namespace fsdp::chess {

/// A value: copy one to try moves on it.
class Position {
 public:
  Position();  ///< the start of a game
  /// \throws FormatError as parse_fen() does (fen.hpp).
  static Position from_fen(std::string_view fen);

  /// Names the en-passant square only where a pawn can legally take there, as python-chess's board.fen() does.
  std::string fen() const;

  Color to_move() const { return board_.to_move; }
  const Board& board() const { return board_; }

  /// In no promised order; empty after checkmate and stalemate only.
  std::vector<Move> legal_moves() const;
  bool has_legal_move() const;
  bool is_legal(Move move) const;
  /// \throws std::invalid_argument when the move is not legal; the position is then unchanged.
  void play(Move move);

  bool in_check() const;  ///< the side to move
  bool is_checkmate() const;
  bool is_stalemate() const;
  /// Neither side can ever give checkmate: bare kings, one knight, or bishops on squares of one color only.
  bool is_insufficient_material() const;
  /// How the game is over; nothing while it goes on. Where several hold, the first of checkmate, insufficient material,
  /// stalemate, seventy-five moves, as in python-chess.
  std::optional<Outcome> outcome() const;

 private:
  explicit Position(const Board& board) : board_(board) {}
  Board board_;
};

}  // namespace fsdp::chess
