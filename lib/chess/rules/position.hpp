#pragma once
// The rules of chess: the legal moves of a position, and when it ends the game.
// Source: FIDE Laws of Chess, 2023, articles 3, 5 and 9.6.2.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/index.hpp"

namespace fsdp::chess {

// The state of a position: pieces, side to move, castling rights, en-passant square and clocks. Only Position
// (position.hpp) enforces the rules; functions on a Board do not check it.

enum class Kind : std::uint8_t { none, pawn, knight, bishop, rook, queen, king };

/// 0 to 63: a1, b1, ..., h1, a2, ..., h8.
using Square = int;
constexpr int num_squares = 64;
constexpr Square no_square = -1;

constexpr int file_of(Square square) { return square % 8; }  ///< 0 to 7 for a to h
constexpr int rank_of(Square square) { return square / 8; }  ///< 0 to 7 for 1 to 8
constexpr Square square_at(int file, int rank) { return 8 * rank + file; }

struct Move {
  Square from = no_square;
  Square to = no_square;
  Kind promotion = Kind::none;
  bool operator==(const Move&) const = default;
};

/// "e4" -> 28; nullopt for any other text
std::optional<Square> parse_square(std::string_view text);
std::string to_string(Square square);

/// Parses the notation without a board. \return nullopt unless the whole text has this form; letters must be lower-case
std::optional<Move> parse_uci(std::string_view text);
std::string to_uci(Move move);

/// A direction on the board.
struct Step {
  int files;
  int ranks;
};

constexpr std::array<Step, 8> knight_steps{{{1, 2}, {2, 1}, {2, -1}, {1, -2}, {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}}};
/// First the straight directions, then the diagonal ones.
constexpr std::array<Step, 8> king_steps{{{0, 1}, {1, 0}, {0, -1}, {-1, 0}, {1, 1}, {1, -1}, {-1, -1}, {-1, 1}}};
constexpr std::span<const Step> straight_steps = std::span(king_steps).first(4);
constexpr std::span<const Step> diagonal_steps = std::span(king_steps).last(4);

/// \return the neighbouring square; no_square beyond the edge
constexpr Square neighbor(Square square, Step step) {
  const int file = file_of(square) + step.files, rank = rank_of(square) + step.ranks;
  return file < 0 || file > 7 || rank < 0 || rank > 7 ? no_square : square_at(file, rank);
}

enum class Color : std::uint8_t { white, black };

constexpr Color opponent(Color color) { return color == Color::white ? Color::black : Color::white; }
/// "white", "black"
constexpr const char* name(Color color) { return color == Color::white ? "white" : "black"; }
/// Direction in which pawns advance: 1 or -1 ranks.
constexpr int forward(Color color) { return color == Color::white ? 1 : -1; }
/// Rank of the king and the rooks at the start, 0 or 7.
constexpr int home_rank(Color color) { return color == Color::white ? 0 : 7; }

struct Piece {
  Kind kind = Kind::none;
  Color color = Color::white;  ///< white on an empty square, so that empty squares compare equal
  bool operator==(const Piece&) const = default;
};

enum Wing : std::uint8_t { king_side, queen_side };

struct Board {
  std::array<Piece, num_squares> squares{};
  std::array<Square, 2> kings{no_square, no_square};  ///< by color
  std::array<std::array<bool, 2>, 2> may_castle{};    ///< by color and wing: neither this king nor this rook has moved
  Color to_move = Color::white;
  Square en_passant = no_square;  ///< square that a pawn has just passed by advancing two, even if no pawn can take it
  int halfmove_clock = 0;         ///< half-moves since the last capture or pawn move
  int fullmove_number = 1;

  Piece& operator[](Square square) { return element(squares, square); }
  const Piece& operator[](Square square) const { return element(squares, square); }
  Square king(Color color) const { return element(kings, color); }
  bool may_castle_to(Color color, Wing wing) const { return element(may_castle, color)[wing]; }
};

/// Puts a piece on a square, and updates the king's square if it is a king.
void put(Board& board, Square square, Piece piece);

/// Carries out a move of the side to move, including captures, castling, promotion, castling rights, clocks and turn.
/// \param move  a move that add_pseudo_moves() generates
void apply(Board& board, Move move);

/// Whether a piece of color `by` attacks `square`; pinned pieces attack, too.
bool is_attacked(const Board& board, Square square, Color by);

/// Whether the king of `color` is in check. \pre the board has this king
bool in_check(const Board& board, Color color);

enum class GameResult : std::uint8_t { white_wins, black_wins, draw, unfinished };

/// PGN notation: "1-0", "0-1", "1/2-1/2", and "*" for an unfinished game.
std::string_view to_string(GameResult result);
/// Inverse of to_string(); nullopt for any other text.
std::optional<GameResult> parse_result(std::string_view text);

/// Appends the moves of the piece on `from`, including moves that leave its own king in check; none if the piece does
/// not belong to the side to move. For castling, everything is checked but the safety of the king's final square.
void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves);

/// Whether a move of add_pseudo_moves() leaves its own king safe.
bool is_safe(const Board& board, Move move);

/// A position with value semantics; copy it to try moves.
class Position {
 public:
  Position();  ///< the initial position
  /// \pre `board` is valid: one king each, the side that has just moved not in check
  explicit Position(const Board& board) : board_(board) {}

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

 private:
  Board board_;
};

}  // namespace fsdp::chess
