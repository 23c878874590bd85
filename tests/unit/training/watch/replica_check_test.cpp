#include "lib/training/watch/replica_check.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
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

  TEST_CASE("a rank that took part in all wrong copies is named, else a host that did") {
    using Transfers = std::vector<WrongTransfer>;
    const std::vector<std::string> hosts{"a", "a", "b", "b", "c", "c"};
    const auto sends = odd_transfers(Transfers{{1, 2}, {3, 2}, {2, 2}}, hosts);
    CHECK(sends.ranks == std::vector{2});
    CHECK(sends.has_majority);
    CHECK(odd_transfers(Transfers{{1, 0}, {1, 2}}, hosts).ranks == std::vector{1});
    const auto card =
        odd_transfers(Transfers{{2, 0}, {3, 1}, {2, 4}, {3, 5}}, hosts);  // of host b, for both of its ranks
    CHECK(card.ranks == std::vector{2, 3});
    CHECK(card.has_majority);
    for (const auto& unsure : {Transfers{{3, 1}}, Transfers{{0, 1}, {1, 0}}, Transfers{{0, 1}, {1, 0}, {2, 3}},
                               Transfers{{0, 1}, {0, 3}, {4, 5}}}) {
      const auto odd = odd_transfers(unsure, hosts);
      std::set<int> all;
      for (const auto& one : unsure) all.insert({one.receiver, one.sender});
      CHECK(odd.ranks == std::vector<int>(all.begin(), all.end()));
      CHECK_FALSE(odd.has_majority);
    }
  }
}
