#pragma once
// The state of a position: pieces, side to move, castling rights, en-passant square and clocks. Only Position
// (position.hpp) enforces the rules; the functions here and in attacks.hpp and pseudo_moves.hpp do not check the board.
#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/chess/rules/move.hpp"

namespace fsdp::chess {

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
  Square en_passant = no_square;  ///< square behind a pawn that has just advanced by two, even if no pawn can take it
  int halfmove_clock = 0;         ///< half-moves since the last capture or pawn move
  int fullmove_number = 1;

  Piece& operator[](Square square) { return squares[static_cast<std::size_t>(square)]; }
  const Piece& operator[](Square square) const { return squares[static_cast<std::size_t>(square)]; }
  Square king(Color color) const { return kings[static_cast<std::size_t>(color)]; }
  bool may_castle_to(Color color, Wing wing) const { return may_castle[static_cast<std::size_t>(color)][wing]; }
};

/// Puts a piece on a square, and updates the king's square if it is a king.
void put(Board& board, Square square, Piece piece);

/// Carries out a move of the side to move, including captures, castling, promotion, castling rights, clocks and turn.
/// \param move  a move that add_pseudo_moves() generates
void apply(Board& board, Move move);

}  // namespace fsdp::chess
