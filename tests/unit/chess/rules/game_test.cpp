#include "lib/chess/rules/game.hpp"

#include <doctest/doctest.h>

#include <string>

#include "lib/chess/rules/position.hpp"
#include "tests/support/chess_fen.hpp"

using namespace fsdp::chess;

namespace {

Replay replay_text(std::string_view text) { return replay(split_game(text).moves); }

std::string problem_from(const char* fen, std::string_view move) {
  return replay(std::vector{move}, position_of(fen)).problem;
}

}  // namespace

TEST_SUITE("chess/game") {
  TEST_CASE("split_game: moves and the result after them") {
    const auto game = split_game(" e2e4 e7e5\n\tg1f3  1/2-1/2 \r\n");
    CHECK(game.moves == std::vector<std::string_view>{"e2e4", "e7e5", "g1f3"});
    CHECK(game.result == GameResult::draw);
  }

  TEST_CASE("split_game: the result may be missing, alone or out of place") {
    CHECK_FALSE(split_game("e2e4").result);
    CHECK(split_game("").moves.empty());
    CHECK(split_game(" \n").moves.empty());
    CHECK(split_game("*").result == GameResult::unfinished);
    CHECK(split_game("*").moves.empty());
    const auto early = split_game("e2e4 1-0 e7e5");
    CHECK_FALSE(early.result);
    CHECK(early.moves.size() == 3);
    const auto twice = split_game("e2e4 1-0 0-1");
    CHECK(twice.result == GameResult::black_wins);
    CHECK(twice.moves.size() == 2);
  }

  TEST_CASE("replay: a whole game, to its mate") {
    const auto done = replay_text("e2e4 e7e5 d1h5 b8c6 f1c4 g8f6 h5f7 1-0");
    CHECK(done.legal_moves == 7);
    CHECK(done.problem.empty());
    CHECK(fen_of(done.position) == "r1bqkb1r/pppp1Qpp/2n2n2/4p3/2B1P3/8/PPPP1PPP/RNB1K1NR b KQkq - 0 4");
    CHECK(outcome_of(done.position) == Outcome{Termination::checkmate, GameResult::white_wins});
  }

  TEST_CASE("replay: no moves leave the start position") {
    const auto done = replay({});
    CHECK(done.legal_moves == 0);
    CHECK(done.problem.empty());
    CHECK(fen_of(done.position) == start_fen);
  }

  TEST_CASE("replay: stops at the first illegal move and says which and why") {
    const auto done = replay_text("e2e4 e7e5 g1f3 b8c6 e1g1 g8f6");
    CHECK(done.legal_moves == 4);
    CHECK(done.problem == "move 5 'e1g1' is not legal here: the king on e1 cannot do that");
    CHECK(fen_of(done.position) == "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3");
  }

  TEST_CASE("replay: reports every kind of reason") {
    CHECK(replay_text("e2e4 e4e5").problem == "move 2 'e4e5' is not legal here: black is to move");
    CHECK(replay_text("e2e4 e6e5").problem == "move 2 'e6e5' is not legal here: e6 is empty");
    CHECK(replay_text("f2f3 e7e5 g2g4 d8h4 e1f2").problem ==
          "move 5 'e1f2' is not legal here: the game is over (CHECKMATE)");
    CHECK(replay_text("e2e4 1-0 e7e5").problem == "move 2 '1-0' is not a move like e2e4 or e7e8q");
    CHECK(problem_from("4k3/4r3/8/8/8/8/4N3/4K3 w - - 0 1", "e2c3") ==
          "move 1 'e2c3' is not legal here: it leaves the white king in check");
    CHECK(problem_from("4k3/8/8/8/8/8/4p3/K7 b - - 0 1", "e2e1") ==
          "move 1 'e2e1' is not legal here: it does not say what the pawn becomes");
    // A draw by rule does not end the replay, so it is not reported.
    CHECK(problem_from("4k3/8/8/8/8/8/8/4K3 w - - 0 1", "e1e3") ==
          "move 1 'e1e3' is not legal here: the king on e1 cannot do that");
  }

  TEST_CASE("replay: shows words that are not moves short and printable") {
    CHECK(replay_text("\xC3\xA9\x01{}").problem == "move 1 '???{}' is not a move like e2e4 or e7e8q");
    CHECK(replay_text(std::string(100'000, 'e')).problem ==
          "move 1 'eeeeeeeeeeeeeeeeeeee...' is not a move like e2e4 or e7e8q");
  }
}
