#pragma once
// The rules of chess: the legal moves of a position, and when it ends the game.
// Source: FIDE Laws of Chess, 2023, articles 3, 5 and 9.6.2.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chess/rules/board.hpp"
#include "lib/chess/rules/move.hpp"
#include "lib/chess/rules/outcome.hpp"

namespace fsdp::chess {

/// A position with value semantics; copy it to try moves.
class Position {
 public:
  Position();  ///< the initial position
  /// \throws FormatError as parse_fen() does (fen.hpp).
  static Position from_fen(std::string_view fen);

  /// Formats the position as FEN, with the en-passant square only if a pawn can legally take there, like python-chess's
  /// board.fen().
  std::string fen() const;

  Color to_move() const { return board_.to_move; }
  const Board& board() const { return board_; }

  /// \return the legal moves in unspecified order; empty only after checkmate and stalemate
  std::vector<Move> legal_moves() const;
  bool has_legal_move() const;
  bool is_legal(Move move) const;
  /// \throws std::invalid_argument when the move is not legal, leaving the position unchanged
  void play(Move move);

  bool in_check() const;  ///< whether the side to move is in check
  bool is_checkmate() const;
  bool is_stalemate() const;
  /// Whether neither side can ever give checkmate: bare kings, a single knight, or only bishops on squares of one
  /// color.
  bool is_insufficient_material() const;
  /// \return how the game has ended; nullopt while it continues. If several reasons apply, returns the first of
  /// checkmate, insufficient material, stalemate, seventy-five moves, as python-chess does
  std::optional<Outcome> outcome() const;

 private:
  explicit Position(const Board& board) : board_(board) {}
  Board board_;
};

}  // namespace fsdp::chess
