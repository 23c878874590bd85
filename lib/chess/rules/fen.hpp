#pragma once
#include <string>
#include <string_view>

#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

constexpr std::string_view start_fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

/// Parses the six fields of a FEN (pieces, side to move, castling rights, en-passant square, half-move clock, full-move
/// number) and checks that the position is valid: one king each, no pawn on the first or last rank, the side that has
/// just moved not in check, castling rights and en-passant square consistent with the pieces. Accepts an en-passant
/// square even if no pawn can take there.
/// \throws FormatError naming the field and its valid values. Source: the PGN standard, section 16.1.
Board parse_fen(std::string_view text);

/// Formats a board as FEN. \param en_passant  square to name, or no_square
std::string format_fen(const Board& board, Square en_passant);

}  // namespace fsdp::chess
