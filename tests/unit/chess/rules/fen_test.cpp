#include "lib/chess/rules/position.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "lib/base/types/error.hpp"
#include "tests/support/chess_fen.hpp"

using namespace fsdp;
using namespace fsdp::chess;

namespace {

std::string problem(const std::string& fen) {
  try {
    parse_fen(fen);
  } catch (const FormatError& error) {
    const std::string what = error.what(), before = "FEN '" + fen + "': ";
    return what.starts_with(before) ? what.substr(before.size()) : what;
  }
  return "";
}

}  // namespace

TEST_SUITE("chess/fen") {
  TEST_CASE("format_fen: writes what parse_fen reads") {
    for (const std::string fen :
         {"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
          "rnbqkbnr/pp1ppppp/8/2pP4/8/8/PPP1PPPP/RNBQKBNR w KQkq c6 0 3", "r3k2r/8/8/8/8/8/8/R3K2R b Kq - 17 9999",
          "8/p1p1p1p1/1N1n1B1b/R1r1Q1q1/4K2k/8/8/8 w - - 3 40"}) {
      const auto board = parse_fen(fen);
      CHECK(format_fen(board, board.en_passant) == fen);
    }
  }

  TEST_CASE("Position: names the en-passant square only where a pawn can take") {
    CHECK(fen_of(position_of("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1")) ==
          "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1");
    CHECK(fen_of(position_of("4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1")) == "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1");
    // The queen can go to e3, but only a pawn would take there.
    CHECK(fen_of(position_of("4k3/8/8/8/4P3/7q/8/4K3 b - e3 0 1")) == "4k3/8/8/8/4P3/7q/8/4K3 b - - 0 1");
  }

  TEST_CASE("parse_fen: errors tell what is wrong with a field") {
    CHECK(problem("") == "6 fields with one space between them are needed, not 1");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w - - 0") == "6 fields with one space between them are needed, not 5");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w  - 0 1 ") == "6 fields with one space between them are needed, not 7");
    CHECK(problem("4k3/8/8/8/8/8/8 w - - 0 1") == "the pieces should be eight ranks of eight squares");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3/8 w - - 0 1") == "the pieces should be eight ranks of eight squares");
    CHECK(problem("4k3/8/8/7/8/8/8/4K3 w - - 0 1") == "the pieces should be eight ranks of eight squares");
    CHECK(problem("4k4/8/8/8/8/8/8/4K3 w - - 0 1") == "rank 8 has more than eight squares");
    CHECK(problem("8k/8/8/8/8/8/8/4K3 w - - 0 1") == "rank 8 has more than eight squares");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2x w - - 0 1") == "'x' is not a piece");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2{ w - - 0 1") == "'{' is not a piece");
    CHECK(problem("4k3/9/8/8/8/8/8/4K3 w - - 0 1") == "'9' is not a piece");
    CHECK(problem("8/8/8/8/8/8/8/4K3 w - - 0 1") == "there should be one black king, not 0");
    CHECK(problem("4k3/8/8/8/8/8/K7/4K3 w - - 0 1") == "there should be one white king, not 2");
    CHECK(problem("4k2P/8/8/8/8/8/8/4K3 w - - 0 1") == "a pawn cannot stand on h8");
    CHECK(problem("4k3/8/8/8/8/8/8/p3K3 w - - 0 1") == "a pawn cannot stand on a1");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 W - - 0 1") == "the side to move should be w or b, not 'W'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2R w KX - 0 1") == "the castling rights should be some of KQkq, or -, not 'KX'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2R w KK - 0 1") == "the castling rights name K twice");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2R w Q - 0 1") ==
          "castling right Q needs the king and that rook on their first squares");
    CHECK(problem("8/4k3/8/8/8/8/8/4K3 w - x9 0 1") == "the en-passant square should be a square or -, not 'x9'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w - - -1 1") ==
          "the half-move clock should be a number from 0 to 9999, not '-1'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w - - 0 0") ==
          "the full-move number should be a number from 1 to 9999, not '0'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w - - 0 99999999999") ==
          "the full-move number should be a number from 1 to 9999, not '99999999999'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K3 w - - 1x 1") ==
          "the half-move clock should be a number from 0 to 9999, not '1x'");
    CHECK(problem("4k3/8/8/8/8/8/8/4K2r b - - 0 1") == "the white king is in check, but black is to move");
    CHECK(problem(std::string(1'000'000, '1')) == "a FEN has at most 120 characters, not 1000000");
  }

  TEST_CASE("parse_fen: the en-passant square must be one a pawn has just passed") {
    CHECK(problem("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1") == "");
    CHECK(problem("4k3/8/8/3P4/8/8/8/4K3 w - d6 0 1") == "no black pawn can have passed d6 with its last move");
    CHECK(problem("4k3/8/8/3p4/8/8/8/4K3 b - d6 0 1") == "no white pawn can have passed d6 with its last move");
    CHECK(problem("4k3/8/3n4/3p4/8/8/8/4K3 w - d6 0 1") == "no black pawn can have passed d6 with its last move");
    CHECK(problem("4k3/3n4/8/3p4/8/8/8/4K3 w - d6 0 1") == "no black pawn can have passed d6 with its last move");
    CHECK(problem("4k3/8/8/3p4/8/8/8/4K3 w - d1 0 1") == "no black pawn can have passed d1 with its last move");
    CHECK(problem("4k3/8/8/3p4/8/8/8/4K3 w - d8 0 1") == "no black pawn can have passed d8 with its last move");
  }

  TEST_CASE("parse_fen: a damaged FEN is rejected, or still valid and round-trips") {
    std::mt19937 random(3);
    const std::string letters = "pnbrqkPNBRQK12345678/ -wacdefgh90\t\xFF";
    std::size_t read = 0, refused = 0;
    for (int round = 0; round < 20'000; ++round) {
      std::string fen = "r3k2r/p1pp1pb1/bn2Qnp1/2qPN3/1p2P3/2N5/PPPBBPPP/R3K2R b KQkq - 3 2";
      for (auto changes = 1 + random() % 3; changes > 0; --changes) {
        const auto at = random() % fen.size();
        const char letter = letters[random() % letters.size()];
        const auto way = random() % 3;
        if (way == 0) fen[at] = letter;
        if (way == 1) fen.insert(at, 1, letter);
        if (way == 2) fen.erase(at, 1);
      }
      try {
        const auto position = position_of(fen);
        REQUIRE(position_of(fen_of(position)).legal_moves() == position.legal_moves());
        ++read;
      } catch (const FormatError&) {
        ++refused;
      }
    }
    CHECK(read > 100);
    CHECK(refused > 100);
  }
}
