#include "lib/chess/rules/position.hpp"

#include <doctest/doctest.h>

using namespace fsdp::chess;

TEST_SUITE("chess/move") {
  TEST_CASE("parse_uci: parses every possible move, and to_uci formats it again") {
    for (Square from = 0; from < num_squares; ++from) {
      for (Square to = 0; to < num_squares; ++to) {
        for (const auto kind : {Kind::none, Kind::knight, Kind::bishop, Kind::rook, Kind::queen}) {
          const Move move{from, to, kind};
          REQUIRE(parse_uci(to_uci(move)) == move);
        }
      }
    }
  }

  TEST_CASE("parse_uci: squares and letters mean what they should") {
    CHECK(parse_uci("a1h8") == Move{0, 63});
    CHECK(parse_uci("h1a8") == Move{7, 56});
    CHECK(to_uci({*parse_square("e7"), *parse_square("e8"), Kind::queen}) == "e7e8q");
    CHECK(to_uci({*parse_square("e7"), *parse_square("e8"), Kind::rook}) == "e7e8r");
    CHECK(to_uci({*parse_square("e7"), *parse_square("e8"), Kind::bishop}) == "e7e8b");
    CHECK(to_uci({*parse_square("e7"), *parse_square("e8"), Kind::knight}) == "e7e8n");
  }

  TEST_CASE("parse_uci: rejects everything else") {
    for (const char* text :
         {"",      "e",     "e2",    "e2e",    "e2e9",   "e2e0", "i2e4", "e2i4", "E2E4", "e2e4 ", " e2e4", "e2-e4",
          "e7e8k", "e7e8p", "e7e8Q", "e7e8=q", "e7e8qq", "0000", "O-O",  "e4",   "Nf3",  "1-0",   "*"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_uci(text));
    }
    using namespace std::string_view_literals;
    CHECK_FALSE(parse_uci("e2\0e4"sv));
    CHECK_FALSE(parse_uci("e2e4\0"sv));
  }
}
