#include <doctest/doctest.h>

#include <string>

#include "lib/chess/rules/position.hpp"
#include "tests/support/chess_fen.hpp"

using namespace fsdp::chess;

namespace {

/// Number of move sequences of `depth` half-moves.
std::size_t perft(const Position& position, int depth) {
  const auto moves = position.legal_moves();
  if (depth == 1) return moves.size();
  std::size_t sum = 0;
  for (const auto move : moves) {
    auto next = position;
    next.play(move);
    sum += perft(next, depth - 1);
  }
  return sum;
}

struct Count {
  const char* fen;
  int depth;
  std::size_t games;
};

}  // namespace

TEST_SUITE("chess/perft") {
  // The positions 1 to 6 and their counts: Chess Programming Wiki, "Perft Results".
  TEST_CASE("Position: numbers of move sequences from the wiki's six positions") {
    for (const auto& count : {
             Count{"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", 4, 197281},
             Count{"r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 3, 97862},
             Count{"8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 5, 674624},
             Count{"r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", 4, 422333},
             Count{"r2q1rk1/pP1p2pp/Q4n2/bbp1p3/Np6/1B3NBn/pPPP1PPP/R3K2R b KQ - 0 1", 4, 422333},
             Count{"rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8", 3, 62379},
             Count{"r4rk1/1pp1qppp/p1np1n2/2b1p1B1/2B1P1b1/P1NP1N2/1PP1QPPP/R4RK1 w - - 0 10", 3, 89890},
         }) {
      CAPTURE(count.fen);
      CHECK(perft(position_of(count.fen), count.depth) == count.games);
    }
  }
}
