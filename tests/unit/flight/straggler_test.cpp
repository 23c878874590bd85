#include "lib/flight/straggler.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace fsdp;

namespace {

/// Ranks that work for 9 of 10 seconds and wait for one.
std::vector<RankPace> even_ranks(std::size_t count) {
  return std::vector<RankPace>(count, RankPace{.seconds = 10, .wait_seconds = 1});
}

/// Rank 2 of four works for all of the 10 seconds, and the others wait for 4.
std::vector<RankPace> with_slow_rank() {
  auto ranks = even_ranks(4);
  for (auto& rank : ranks) rank.wait_seconds = 4;
  ranks[2].wait_seconds = 0;
  return ranks;
}

}  // namespace

TEST_SUITE("flight/straggler") {
  TEST_CASE("the slowest rank is the one that waits least") {
    const auto slowest = slowest_rank(with_slow_rank());
    CHECK(slowest.rank == 2);
    CHECK(slowest.share == doctest::Approx(0.4));
    CHECK(slowest.cause ==
          "it computes 1.67 times as long as the median rank, and nothing that was measured tells why");
  }

  TEST_CASE("what all ranks wait for, such as the network, is not a rank's fault") {
    auto ranks = even_ranks(4);
    for (auto& rank : ranks) rank.wait_seconds = 6;
    CHECK(slowest_rank(ranks).share == 0);
    CHECK(slowest_rank(even_ranks(1)).share == 0);
    CHECK(slowest_rank(std::vector{RankPace()}).share == 0);
  }

  TEST_CASE("the cause is where its time goes") {
    auto ranks = with_slow_rank();
    ranks[2].read_seconds = 3.5;
    CHECK(slowest_rank(ranks).cause == "it waits 3.5 s longer for its samples than the median rank");
    ranks[2].write_seconds = 3.75;
    ranks[2].read_seconds = 0.25;
    CHECK(slowest_rank(ranks).cause == "it writes 3.75 s longer than the median rank");
  }

  TEST_CASE("the cause is what the machine tells of it") {
    struct Case {
      double RankPace::*field;
      double slow, others;
      const char* words;
    };
    for (const auto& [field, slow, others, words] : std::vector<Case>{
             {&RankPace::starved_seconds, 3, 0.1,
              "a thread of it was without a processor for 2.9 s more: other processes, or too many threads, run"},
             {&RankPace::major_faults, 12000, 3, "12,000 of its pages came from disk (swap)"},
             {&RankPace::megahertz, 1200, 3100, "its processors run at 1200 MHz, not at 3100"},
             {&RankPace::throttles, 7, 0, "its processors were slowed down 7 times for their heat"},
             {&RankPace::gpu_megahertz, 1200, 1980, "its GPU runs at 1200 MHz, not at 1980"},
             {&RankPace::gpu_limits, 0x44, 0x4, "its GPU is slowed down by its temperature (hardware)"},
             {&RankPace::gpu_ecc_errors, 5, 0, "its GPU's memory had 5 ECC errors"}}) {
      auto ranks = with_slow_rank();
      for (auto& rank : ranks) rank.*field = others;
      ranks[2].*field = slow;
      CHECK(slowest_rank(ranks).cause.find(words) != std::string::npos);
      ranks[2].*field = others;
      CHECK(slowest_rank(ranks).cause.find("nothing that was measured") != std::string::npos);
      ranks[2].*field = RankPace::kUnknown;
      CHECK(slowest_rank(ranks).cause.find("nothing that was measured") != std::string::npos);
    }
  }

  TEST_CASE("a rank is named after three intervals, once, and when it keeps up again") {
    StragglerWatch watch({"a", "a", "b", "b"});
    const auto slow = with_slow_rank();
    CHECK(watch.add(slow) == "");
    CHECK(watch.add(slow) == "");
    CHECK(watch.slow_nodes().empty());
    CHECK(watch.add(slow).starts_with("rank 2 (b) makes the others wait, 40 % of the time: it computes"));
    CHECK(watch.add(slow) == "");
    CHECK(watch.slow_nodes() == std::vector<std::string>{"b"});
    CHECK(watch.add(even_ranks(4)) == "");
    CHECK(watch.add(slow) == "");  // once in a while is not enough
    CHECK(watch.add(even_ranks(4)) == "");
    CHECK(watch.add(even_ranks(4)) == "");
    CHECK(watch.add(even_ranks(4)) == "rank 2 (b) keeps up again");
    CHECK(watch.add(even_ranks(4)) == "");
    CHECK(watch.summary() == "the others waited 20 % of the time for rank 2 (b)");
    for (int i = 0; i < 20; ++i) CHECK(watch.add(even_ranks(4)) == "");
    CHECK(watch.summary() == "");
    CHECK(watch.slow_nodes().empty());
  }

  TEST_CASE("with GPUs, whose waits the host does not see, the rank with the slowest clock is named") {
    auto ranks = even_ranks(4);
    for (auto& rank : ranks) {
      rank.wait_seconds = RankPace::kUnknown;
      rank.gpu_megahertz = 1980;
      rank.gpu_limits = 0x4;
    }
    CHECK_FALSE(slowest_rank(ranks).is_slow());
    const auto even = ranks;
    ranks[1].gpu_megahertz = 1700;
    ranks[3].gpu_megahertz = 1200;
    ranks[3].gpu_limits = 0x40;
    ranks[3].gpu_celsius = 91;
    StragglerWatch watch({"a", "a", "b", "b"});
    CHECK(watch.add(ranks) == "");
    CHECK(watch.add(ranks) == "");
    CHECK(watch.add(ranks) ==
          "rank 3 (b) is slower than the others: its GPU is slowed down by its temperature (hardware) (91 C)");
    CHECK(watch.slow_nodes() == std::vector<std::string>{"b"});
    for (int i = 0; i < 2; ++i) CHECK(watch.add(even) == "");
    CHECK(watch.add(even) == "rank 3 (b) keeps up again");
    CHECK(watch.summary() == "");
  }

  TEST_CASE("a rank that writes for all is named, but its node is not to be left out") {
    auto ranks = with_slow_rank();
    ranks[2].write_seconds = 3.75;
    StragglerWatch watch({"a", "a", "b", "b"});
    for (int i = 0; i < 3; ++i) watch.add(ranks);
    CHECK(watch.summary() == "the others waited 40 % of the time for rank 2 (b)");
    CHECK(watch.slow_nodes().empty());
  }

  TEST_CASE("one long interval, and ranks that take turns, are no straggler") {
    const auto slow = with_slow_rank();
    auto other = slow;
    std::swap(other[0], other[2]);
    StragglerWatch watch({"a", "a", "b", "b"}), one_node({"a", "a", "a", "a"});
    for (int i = 0; i < 10; ++i) {
      CHECK(watch.add(i % 2 == 0 ? slow : other) == "");
      CHECK(one_node.add(i % 2 == 0 ? slow : other) == "");
    }
  }

  TEST_CASE("ranks of a node that take turns are slow together") {
    const auto slow = with_slow_rank();
    auto neighbour = slow;
    std::swap(neighbour[3], neighbour[2]);
    StragglerWatch watch({"a", "a", "b", "b"});
    CHECK(watch.add(slow) == "");
    CHECK(watch.add(neighbour) == "");
    CHECK(watch.add(slow).starts_with("rank 2 (b)"));
  }
}
