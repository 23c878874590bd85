#pragma once
#include <string>
#include <string_view>

#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {

constexpr std::string_view start_fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

/// Reads the six fields of a FEN: pieces, side to move, castling rights, en-passant square, half-move clock and
/// full-move number, and checks that the rules can be applied to them: one king each, no pawn on the first or last
/// rank, the side that has just moved not in check, castling rights and en-passant square that fit the pieces.
/// Accepts the en-passant square whether or not a pawn can take there.
/// \throws FormatError naming the field and what it should hold. Source: the PGN standard, section 16.1.
Board parse_fen(std::string_view text);

/// The reverse. \param en_passant the square to name, or no_square.
std::string format_fen(const Board& board, Square en_passant);

}  // namespace fsdp::chess
