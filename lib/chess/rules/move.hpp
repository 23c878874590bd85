#pragma once
// Squares and moves in UCI notation: "e2e4", castling as the king's move "e1g1", promotion "e7e8q".
// Source: the UCI protocol, April 2006, "move format". Its null move "0000" is not supported, since it is not a move of
// a game.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::chess {

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

}  // namespace fsdp::chess
