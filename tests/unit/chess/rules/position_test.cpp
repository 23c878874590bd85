#include "lib/chess/rules/position.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/support/chess_fen.hpp"

using namespace fsdp::chess;

namespace {

/// The legal moves from one square, sorted, with a space between them.
std::string moves_from(const Position& position, std::string_view square) {
  std::vector<std::string> moves;
  for (const auto move : position.legal_moves()) {
    if (to_string(move.from) == square) moves.push_back(to_uci(move));
  }
  std::ranges::sort(moves);
  std::string text;
  for (const auto& move : moves) text += (text.empty() ? "" : " ") + move;
  return text;
}

std::string moves_from(const char* fen, std::string_view square) { return moves_from(position_of(fen), square); }

std::string after(const char* fen, const std::string& moves) {
  auto position = position_of(fen);
  std::istringstream words(moves);
  for (std::string word; words >> word;) position.play(parse_uci(word).value());
  return fen_of(position);
}

bool is_legal(const char* fen, std::string_view move) { return position_of(fen).is_legal(parse_uci(move).value()); }

Outcome outcome_of(const char* fen) { return outcome_of(position_of(fen)).value(); }

}  // namespace

TEST_SUITE("chess/position") {
  TEST_CASE("Position: starts with twenty moves") {
    const Position start;
    CHECK(start.legal_moves().size() == 20);
    CHECK(fen_of(start) == start_fen);
    CHECK(start.to_move() == Color::white);
    CHECK_FALSE(start.in_check());
    CHECK_FALSE(outcome_of(start));
  }

  TEST_CASE("pawns: one or two squares ahead from their first rank, never through or onto a piece") {
    CHECK(moves_from("4k3/8/8/8/8/8/P7/4K3 w - - 0 1", "a2") == "a2a3 a2a4");
    CHECK(moves_from("4k3/8/8/8/8/P7/8/4K3 w - - 0 1", "a3") == "a3a4");
    CHECK(moves_from("4k3/8/8/8/8/n7/P7/4K3 w - - 0 1", "a2") == "");
    CHECK(moves_from("4k3/8/8/8/n7/8/P7/4K3 w - - 0 1", "a2") == "a2a3");
    CHECK(moves_from("4k3/p7/8/8/8/8/8/4K3 b - - 0 1", "a7") == "a7a5 a7a6");
  }

  TEST_CASE("pawns: take diagonally ahead, not around the edge of the board and not their own") {
    CHECK(moves_from("4k3/8/8/8/8/1n1N4/2P5/4K3 w - - 0 1", "c2") == "c2b3 c2c3 c2c4");
    CHECK(moves_from("4k3/8/8/8/7n/8/P7/4K3 w - - 0 1", "a2") == "a2a3 a2a4");
    CHECK(moves_from("4k3/7p/8/P7/8/8/8/4K3 b - - 0 1", "h7") == "h7h5 h7h6");
  }

  TEST_CASE("pawns: promote to one of four pieces on the last rank") {
    const char* fen = "n3k3/1P6/8/8/8/8/8/4K3 w - - 0 1";
    CHECK(moves_from(fen, "b7") == "b7a8b b7a8n b7a8q b7a8r b7b8b b7b8n b7b8q b7b8r");
    CHECK_FALSE(is_legal(fen, "b7b8"));
    CHECK_FALSE(is_legal(fen, "e1e2q"));
    CHECK_FALSE(position_of(fen).is_legal({*parse_square("b7"), *parse_square("b8"), Kind::king}));
    CHECK(after(fen, "b7a8n") == "N3k3/8/8/8/8/8/8/4K3 b - - 0 1");
    CHECK(after("4k3/8/8/8/8/8/6p1/4K3 b - - 3 9", "g2g1r") == "4k3/8/8/8/8/8/8/4K1r1 w - - 0 10");
  }

  TEST_CASE("en passant: only on the next move, by an adjacent pawn, and the taken pawn disappears") {
    const char* fen = "4k3/3p4/8/2P1P3/8/8/8/4K3 b - - 0 1";
    CHECK(after(fen, "d7d5") == "4k3/8/8/2PpP3/8/8/8/4K3 w - d6 0 2");
    CHECK(after(fen, "d7d5 e5d6") == "4k3/8/3P4/2P5/8/8/8/4K3 b - - 0 2");
    CHECK(after(fen, "d7d5 c5d6") == "4k3/8/3P4/4P3/8/8/8/4K3 b - - 0 2");
    CHECK(after(fen, "d7d5 e1e2 e8e7") == "8/4k3/8/2PpP3/8/8/4K3/8 w - - 2 3");
    CHECK_THROWS_AS(after(fen, "d7d5 e1e2 e8e7 e5d6"), std::invalid_argument);
    CHECK_THROWS_AS(after(fen, "d7d6 e1e2 d6d5 e5d6"), std::invalid_argument);  // two single steps
    CHECK(after("4k3/8/8/8/2p5/8/3P4/4K3 w - - 0 1", "d2d4 c4d3") == "4k3/8/8/8/8/3p4/8/4K3 w - - 0 2");
  }

  TEST_CASE("en passant: only a pawn captures en passant") {
    CHECK(after("4k3/3p4/8/4R3/8/8/8/4K3 b - - 0 1", "e8f8 e5e6 d7d5 e6d6") == "5k2/8/3R4/3p4/8/8/8/4K3 b - - 1 3");
  }

  TEST_CASE("en passant: not when both pawns leaving the rank opens it to the king") {
    const char* fen = "8/8/8/K2pP2r/8/8/8/4k3 w - d6 0 2";
    CHECK(moves_from(fen, "e5") == "e5e6");
    CHECK(fen_of(position_of(fen)) == "8/8/8/K2pP2r/8/8/8/4k3 w - - 0 2");
  }

  TEST_CASE("en passant: takes the pawn that gives check") {
    const char* fen = "8/8/8/2k5/3Pp3/8/8/4K3 b - d3 0 1";
    CHECK(position_of(fen).in_check());
    CHECK(moves_from(fen, "e4") == "e4d3");
  }

  TEST_CASE("knights, bishops, rooks, queens: move and take as they should") {
    CHECK(moves_from("4k3/8/8/8/8/2p5/8/N3K3 w - - 0 1", "a1") == "a1b3 a1c2");
    CHECK(moves_from("4k3/8/8/8/3p4/8/1B6/4K3 w - - 0 1", "b2") == "b2a1 b2a3 b2c1 b2c3 b2d4");
    CHECK(moves_from("4k3/8/8/8/1p6/8/1R1P4/4K3 w - - 0 1", "b2") == "b2a2 b2b1 b2b3 b2b4 b2c2");
    CHECK(moves_from("4k3/8/8/8/1p1p4/8/1Q1P4/K7 w - - 0 1", "b2") == "b2a2 b2a3 b2b1 b2b3 b2b4 b2c1 b2c2 b2c3 b2d4");
  }

  TEST_CASE("kings: do not step into check, back along the line of a check, or next to each other") {
    CHECK(moves_from("4k3/8/8/8/8/8/r7/4K3 w - - 0 1", "e1") == "e1d1 e1f1");
    CHECK(moves_from("4k3/8/8/8/8/8/8/r3K3 w - - 0 1", "e1") == "e1d2 e1e2 e1f2");
    CHECK(moves_from("8/8/8/8/8/4k3/8/4K3 w - - 0 1", "e1") == "e1d1 e1f1");
    CHECK(moves_from("4k3/8/8/8/8/8/3pp3/4K3 w - - 0 1", "e1") == "e1d2 e1e2 e1f2");
    CHECK(moves_from("4k3/8/8/8/8/2n5/3pr3/4K3 w - - 0 1", "e1") == "e1f1");
  }

  TEST_CASE("pins: a pinned piece stays on its line") {
    CHECK(moves_from("4k3/4r3/8/8/8/8/4R3/4K3 w - - 0 1", "e2") == "e2e3 e2e4 e2e5 e2e6 e2e7");
    CHECK(moves_from("4k3/4r3/8/8/8/8/4N3/4K3 w - - 0 1", "e2") == "");
    CHECK(moves_from("4k3/8/8/8/7b/8/5P2/4K3 w - - 0 1", "f2") == "");
    CHECK(moves_from("4k3/8/8/8/8/6b1/5P2/4K3 w - - 0 1", "f2") == "f2g3");
  }

  TEST_CASE("check: is met by taking, blocking or leaving; double check only by leaving") {
    const char* single = "4k3/8/8/8/4r3/2N5/3Q4/4K3 w - - 0 1";
    CHECK(moves_from(single, "c3") == "c3e2 c3e4");
    CHECK(moves_from(single, "d2") == "d2e2 d2e3");
    CHECK(moves_from(single, "e1") == "e1d1 e1f1 e1f2");
    const char* twice = "4k3/8/8/8/4r3/2Nn4/3Q4/4K3 w - - 0 1";
    CHECK(moves_from(twice, "c3") == "");
    CHECK(moves_from(twice, "d2") == "");
    CHECK(moves_from(twice, "e1") == "e1d1 e1f1");
  }

  TEST_CASE("castling: the king moves two squares and the rook comes to its other side") {
    const char* white = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 4 7";
    CHECK(moves_from(white, "e1") == "e1c1 e1d1 e1d2 e1e2 e1f1 e1f2 e1g1");
    CHECK(after(white, "e1g1") == "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 5 7");
    CHECK(after(white, "e1c1") == "r3k2r/8/8/8/8/8/8/2KR3R b kq - 5 7");
    CHECK(after(white, "e1e2 e8g8") == "r4rk1/8/8/8/8/8/4K3/R6R w - - 6 8");
    CHECK(after(white, "e1e2 e8c8") == "2kr3r/8/8/8/8/8/4K3/R6R w - - 6 8");
    CHECK_FALSE(is_legal(white, "e1h1"));  // the notation of Chess960
  }

  TEST_CASE("castling: the right is lost when the king or a rook moves or the rook is taken") {
    const char* fen = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1";
    CHECK(after(fen, "e1e2 a8b8 e2e1") == "1r2k2r/8/8/8/8/8/8/R3K2R b k - 3 2");
    CHECK(after(fen, "h1g1 e8e7 g1h1") == "r6r/4k3/8/8/8/8/8/R3K2R b Q - 3 2");
    CHECK(after(fen, "a1a8 e8e7") == "R6r/4k3/8/8/8/8/8/4K2R w K - 1 2");
    CHECK_FALSE(is_legal("r3k2r/8/8/8/8/8/8/R3K2R w Qkq - 0 1", "e1g1"));
  }

  TEST_CASE("castling: not out of, through or into check, nor over a piece") {
    CHECK_FALSE(is_legal("4k3/8/8/8/8/8/4r3/R3K2R w KQ - 0 1", "e1g1"));
    CHECK_FALSE(is_legal("4k3/8/8/8/8/5r2/8/R3K2R w KQ - 0 1", "e1g1"));
    CHECK_FALSE(is_legal("4k3/8/8/8/8/6r1/8/R3K2R w KQ - 0 1", "e1g1"));
    CHECK(is_legal("4k3/8/8/8/8/7r/8/R3K2R w KQ - 0 1", "e1g1"));
    CHECK_FALSE(is_legal("4k3/8/8/8/8/3r4/8/R3K2R w KQ - 0 1", "e1c1"));
    CHECK_FALSE(is_legal("4k3/8/8/8/8/2r5/8/R3K2R w KQ - 0 1", "e1c1"));
    CHECK(is_legal("4k3/8/8/8/8/1r6/8/R3K2R w KQ - 0 1", "e1c1"));  // only the rook passes b1
    CHECK_FALSE(is_legal("4k3/8/8/8/8/8/8/RN2K2R w KQ - 0 1", "e1c1"));
    CHECK_FALSE(is_legal("4k3/8/8/8/8/8/8/R3K1nR w KQ - 0 1", "e1g1"));
    CHECK_FALSE(is_legal("r3k2r/8/8/8/8/7B/8/4K3 b kq - 0 1", "e8c8"));
    CHECK(is_legal("r3k2r/8/8/8/8/7B/8/4K3 b kq - 0 1", "e8g8"));
    CHECK(is_legal("r3k2r/8/8/8/8/8/7B/4K3 b kq - 0 1", "e8c8"));  // only the rook passes b8
  }

  TEST_CASE("only the side to move can move") {
    CHECK_FALSE(Position().is_legal(*parse_uci("e7e5")));
    CHECK_FALSE(Position().is_legal(*parse_uci("e4e5")));
    CHECK_FALSE(Position().is_legal(*parse_uci("e2e2")));
    CHECK_FALSE(Position().is_legal({}));
    CHECK_FALSE(Position().is_legal({64, 3}));
  }

  TEST_CASE("Position: play rejects illegal moves and leaves the position unchanged") {
    Position position;
    CHECK_THROWS_AS(position.play(*parse_uci("e2e5")), std::invalid_argument);
    CHECK(fen_of(position) == start_fen);
  }

  TEST_CASE("Position: is_legal agrees with legal_moves for every possible move") {
    for (const char* fen :
         {"r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
          "r2q1rk1/pP1p2pp/Q4n2/bbp1p3/Np6/1B3NBn/pPPP1PPP/R3K2R b KQ - 0 1",
          "r3k2r/Pppp1ppp/1b3nbN/nPP5/BB2P3/q4N2/Pp1P2PP/R2Q1RK1 b kq - 0 1", "8/8/8/K2pP2r/8/8/8/4k3 w - d6 0 2"}) {
      const auto position = position_of(fen);
      const auto legal = position.legal_moves();
      std::size_t found = 0;
      for (Square from = 0; from < num_squares; ++from) {
        for (Square to = 0; to < num_squares; ++to) {
          for (const auto kind :
               {Kind::none, Kind::pawn, Kind::knight, Kind::bishop, Kind::rook, Kind::queen, Kind::king}) {
            const bool says = position.is_legal({from, to, kind});
            REQUIRE(says == (std::ranges::count(legal, Move{from, to, kind}) == 1));
            found += says;
          }
        }
      }
      CHECK(found == legal.size());
      CHECK(position.has_legal_move());
    }
  }

  TEST_CASE("outcome: checkmate, for either side") {
    const Outcome mate = outcome_of("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3");
    CHECK(mate == Outcome{Termination::checkmate, GameResult::black_wins});
    CHECK(outcome_of("R3k3/8/4K3/8/8/8/8/8 b - - 0 1") == Outcome{Termination::checkmate, GameResult::white_wins});
    CHECK(position_of("R3k3/8/4K3/8/8/8/8/8 b - - 0 1").is_checkmate());
    CHECK_FALSE(position_of("R3k3/8/4K3/8/8/8/8/8 b - - 0 1").is_stalemate());
    CHECK_FALSE(outcome_of(position_of("R3k3/8/3K4/8/8/8/8/8 b - - 0 1")));  // Kf7
  }

  TEST_CASE("outcome: stalemate") {
    const char* fen = "k7/2Q5/8/8/8/8/8/4K3 b - - 0 1";
    CHECK(outcome_of(fen) == Outcome{Termination::stalemate, GameResult::draw});
    CHECK(position_of(fen).is_stalemate());
    CHECK_FALSE(position_of(fen).is_checkmate());
    CHECK(position_of(fen).legal_moves().empty());
    CHECK_FALSE(outcome_of(position_of("8/8/8/8/8/1k6/6p1/K7 w - - 0 1")));  // the one move is on the first square
    CHECK_FALSE(outcome_of(position_of("7k/8/6K1/8/8/8/1P6/8 b - - 0 1")));  // or the last
  }

  TEST_CASE("outcome: too little material to mate with") {
    for (const char* pieces : {"4k3/8/8/8/8/8/8/4K3", "4k3/8/8/8/8/8/8/3NK3", "4kb2/8/8/8/8/8/8/4K3",
                               "4kb2/8/8/8/8/8/8/2B1K3", "4k3/8/8/2B1B3/8/8/8/4K3"}) {
      CAPTURE(pieces);
      CHECK(outcome_of((pieces + std::string(" w - - 0 1")).c_str()) ==
            Outcome{Termination::insufficient_material, GameResult::draw});
    }
    for (const char* pieces :
         {"4k3/8/8/8/8/8/8/2NNK3", "4kn2/8/8/8/8/8/8/3NK3", "4kb2/8/8/8/8/8/8/3NK3", "4k1b1/8/8/8/8/8/8/2B1K3",
          "4k3/8/8/8/8/8/P7/4K3", "4k3/8/8/8/8/8/8/R3K3", "4k3/q7/8/8/8/8/8/4K3"}) {
      CAPTURE(pieces);
      CHECK_FALSE(outcome_of(position_of(pieces + std::string(" w - - 0 1"))));
    }
  }

  TEST_CASE("outcome: seventy-five moves without capture or pawn move, unless the last one mates") {
    CHECK_FALSE(outcome_of(position_of("4k3/8/8/8/8/8/8/R3K3 w - - 149 100")));
    CHECK(outcome_of("4k3/8/8/8/8/8/8/R3K3 w - - 150 100") ==
          Outcome{Termination::seventyfive_moves, GameResult::draw});
    CHECK(outcome_of("R3k3/8/4K3/8/8/8/8/8 b - - 150 100").termination == Termination::checkmate);
  }

  TEST_CASE("results and terminations: the names of PGN and python-chess") {
    CHECK(to_string(GameResult::draw) == "1/2-1/2");
    CHECK(parse_result("0-1") == GameResult::black_wins);
    CHECK(parse_result("1-0") == GameResult::white_wins);
    CHECK(parse_result("*") == GameResult::unfinished);
    CHECK_FALSE(parse_result("1-1"));
    CHECK(to_string(Termination::insufficient_material) == "INSUFFICIENT_MATERIAL");
  }
}
