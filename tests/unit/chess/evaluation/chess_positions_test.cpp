#include "lib/chess/evaluation/evaluate_games.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

namespace {

using Places = std::vector<std::pair<std::int64_t, std::size_t>>;

Places draw(std::size_t wanted, std::uint64_t seed, const std::vector<std::size_t>& moves, std::size_t first = 0) {
  fsdp::PositionSample sample(wanted, seed);
  for (std::size_t g = 0; g < moves.size(); ++g) sample.offer(static_cast<std::int64_t>(g), "", first, moves[g], {});
  Places places;
  for (const auto& position : sample.take()) places.emplace_back(position.game, position.move);
  return places;
}

std::map<std::int64_t, int> by_game(const Places& places) {
  std::map<std::int64_t, int> counts;
  for (const auto& [game, move] : places) ++counts[game];
  return counts;
}

}  // namespace

TEST_SUITE("eval/chess_positions") {
  TEST_CASE("PositionSample: one position per game if there are enough games, each at most once") {
    const auto few = draw(10, 1, std::vector<std::size_t>(100, 50));
    CHECK(few.size() == 10);
    for (const auto& [game, count] : by_game(few)) CHECK(count == 1);
    const auto many = draw(25, 1, std::vector<std::size_t>(10, 50));
    CHECK(many.size() == 25);
    for (const auto& [game, count] : by_game(many)) CHECK((count == 2 || count == 3));
    CHECK(std::set(many.begin(), many.end()).size() == 25);
    CHECK(std::is_sorted(many.begin(), many.end()));
  }

  TEST_CASE("PositionSample: returns all offered positions when more are requested") {
    CHECK(draw(100, 3, {2, 0, 3}, 1) == Places{{0, 1}, {0, 2}, {2, 1}, {2, 2}, {2, 3}});
    CHECK(draw(0, 3, {2, 3}).empty());
  }

  TEST_CASE("PositionSample: the seed determines the sample, and all positions are equally likely") {
    const std::vector<std::size_t> moves(20, 5);
    CHECK(draw(7, 5, moves) == draw(7, 5, moves));
    CHECK(draw(7, 5, moves) != draw(7, 6, moves));
    std::map<std::pair<std::int64_t, std::size_t>, int> seen;
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      for (const auto& place : draw(5, seed, moves)) ++seen[place];
    }
    CHECK(seen.size() == 100);
    for (const auto& [place, count] : seen) CHECK((count > 50 && count < 160));  // 100 expected
  }

  TEST_CASE("PositionSample: keeps whether the move was right") {
    fsdp::PositionSample sample(3, 0);
    sample.offer(4, "e2e4 e7e5 g1f3", 0, 3, {true, false, true});
    const auto positions = sample.take();
    REQUIRE(positions.size() == 3);
    CHECK(positions[0].right);
    CHECK_FALSE(positions[1].right);
    CHECK(*positions[2].text == "e2e4 e7e5 g1f3");
  }
}
