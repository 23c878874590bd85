#include "lib/training/watch/replica_check.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace fsdp;

TEST_SUITE("training/replica_check") {
  using Digests = std::vector<std::vector<std::uint64_t>>;

  TEST_CASE("equal numbers have no odd ranks") {
    CHECK(odd_ranks(Digests{{1, 2}, {1, 2}, {1, 2}}).ranks.empty());
    CHECK(odd_ranks(Digests{{1, 2}}).ranks.empty());
    CHECK(odd_ranks(Digests{{}, {}}).ranks.empty());
  }

  TEST_CASE("the majority is right") {
    const auto odd = odd_ranks(Digests{{1, 2, 3}, {1, 2, 3}, {1, 7, 9}, {1, 2, 3}});
    CHECK(odd.ranks == std::vector{2});
    CHECK(odd.has_majority);
    CHECK(odd.first_item == 1);
    CHECK(odd_ranks(Digests{{5}, {1}, {1}, {1}, {6}}).ranks == std::vector{0, 4});
  }

  TEST_CASE("without a majority all are named") {
    const auto two = odd_ranks(Digests{{1, 2}, {1, 3}});
    CHECK(two.ranks == std::vector{0, 1});
    CHECK_FALSE(two.has_majority);
    CHECK(two.first_item == 1);
    CHECK(odd_ranks(Digests{{1}, {1}, {2}, {2}}).ranks == std::vector{0, 1, 2, 3});
  }

  TEST_CASE("a rank that computes wrongly differs from both of its neighbours") {
    using Losses = std::vector<std::uint64_t>;
    const Losses right{10, 11, 12, 13}, of_previous{13, 10, 11, 12};
    CHECK(odd_neighbours(right, of_previous).ranks.empty());
    for (int wrong = 0; wrong < 4; ++wrong) {
      auto own = right, previous = of_previous;
      own[static_cast<std::size_t>(wrong)] += 100;
      previous[static_cast<std::size_t>(wrong)] += 100;
      CHECK(odd_neighbours(own, previous).ranks == std::vector{wrong});
      CHECK(odd_neighbours(own, previous).has_majority);
    }
    const auto once = odd_neighbours(right, Losses{13, 10, 99, 12});  // one of two, of which none can be told
    CHECK(once.ranks == std::vector{1, 2});
    CHECK_FALSE(once.has_majority);
    CHECK(odd_neighbours(Losses{1, 2}, Losses{3, 1}).ranks == std::vector{0, 1});
    CHECK(odd_neighbours(Losses{1}, Losses{1}).ranks.empty());
  }

  TEST_CASE("a rank with which most transfers went wrong is named") {
    using Transfers = std::vector<WrongTransfer>;
    const auto sends = odd_transfers(Transfers{{0, 2}, {1, 2}, {3, 2}});
    CHECK(sends.ranks == std::vector{2});
    CHECK(sends.has_majority);
    CHECK(odd_transfers(Transfers{{1, 0}, {1, 2}, {1, 3}}).ranks == std::vector{1});
    CHECK(odd_transfers(Transfers{{1, 1}, {0, 1}}).ranks == std::vector{1});
    const auto link = odd_transfers(Transfers{{3, 1}});
    CHECK(link.ranks == std::vector{1, 3});
    CHECK_FALSE(link.has_majority);
    const auto sums = odd_transfers(Transfers{{0, -1}, {2, -1}});  // all ranks added to them
    CHECK(sums.ranks == std::vector{0, 2});
    CHECK_FALSE(sums.has_majority);
    CHECK(odd_transfers(Transfers{{0, 1}, {1, 0}, {2, 3}, {3, 2}}).ranks == std::vector{0, 1, 2, 3});
  }
}
