#pragma once
// The rules of chess: the legal moves of a position, and when it ends the game.
// Source: FIDE Laws of Chess, 2023, articles 3, 5 and 9.6.2.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

enum class GameResult : std::uint8_t { white_wins, black_wins, draw, unfinished };

/// PGN notation: "1-0", "0-1", "1/2-1/2", and "*" for an unfinished game.
std::string_view to_string(GameResult result);
/// Inverse of to_string(); nullopt for any other text.
std::optional<GameResult> parse_result(std::string_view text);

/// Reasons that end a game automatically and can be seen from one position. Repetition needs the whole game, and draws
/// by the fifty-move rule or threefold repetition need a player's claim, so they are not included.
enum class Termination : std::uint8_t { checkmate, stalemate, insufficient_material, seventyfive_moves };

/// "CHECKMATE", "STALEMATE", "INSUFFICIENT_MATERIAL", "SEVENTYFIVE_MOVES": names of python-chess, which the column
/// Termination of laion/strategic_game_chess uses.
std::string_view to_string(Termination termination);

struct Outcome {
  Termination termination;
  GameResult result;  ///< never GameResult::unfinished
  bool operator==(const Outcome&) const = default;
};

/// Appends the moves of the piece on `from`, including moves that leave its own king in check; none if the piece does
/// not belong to the side to move. For castling, everything is checked but the safety of the king's final square.
void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves);

/// Whether a move of add_pseudo_moves() leaves its own king safe.
bool is_safe(const Board& board, Move move);

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
