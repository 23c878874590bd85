#include "lib/hub/partial_file.hpp"

#include <doctest/doctest.h>

#include <bitset>
#include <random>

using namespace fsdp;

TEST_SUITE("hub/interval_set") {
  TEST_CASE("IntervalSet: agrees with a set of single positions under random changes") {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
      IntervalSet set;
      std::bitset<64> truth;
      for (int change = 0; change < 30; ++change) {
        ByteRange range{random() % 52, 0};
        range.end = range.begin + random() % 12;
        const bool add = random() % 3 != 0;
        add ? set.add(range) : set.subtract(range);
        for (auto i = range.begin; i < range.end; ++i) truth[i] = add;
        REQUIRE(set.size() == truth.count());
        const auto ranges = set.ranges();
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          REQUIRE(ranges[i].begin < ranges[i].end);
          if (i > 0) REQUIRE(ranges[i - 1].end < ranges[i].begin);
        }
        for (std::uint64_t at = 0; at < 64; ++at) {
          auto end = at;
          while (end < 64 && truth[end]) ++end;
          REQUIRE(set.run_end(at) == end);
        }
        const ByteRange window{random() % 40, 0};
        const ByteRange asked{window.begin, window.begin + random() % 24};
        std::bitset<64> in, out;
        for (const auto& part : set.within(asked)) {
          for (auto i = part.begin; i < part.end; ++i) in[i] = true;
        }
        for (const auto& part : set.missing(asked)) {
          for (auto i = part.begin; i < part.end; ++i) out[i] = true;
        }
        bool all = true;
        for (std::uint64_t i = 0; i < 64; ++i) {
          const bool inside = i >= asked.begin && i < asked.end;
          REQUIRE(in[i] == (inside && truth[i]));
          REQUIRE(out[i] == (inside && !truth[i]));
          if (inside && !truth[i]) all = false;
        }
        REQUIRE(set.contains(asked) == all);
      }
    }
  }
}
