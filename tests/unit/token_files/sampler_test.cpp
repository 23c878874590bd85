#include "lib/token_files/sampler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <vector>

#include "lib/base/types/error.hpp"

using Rows = std::vector<std::int64_t>;

TEST_SUITE("dataset/data_order") {
  TEST_CASE("epoch_permutation: holds every row once, for sizes around the edges") {
    for (const std::int64_t num_rows : {0, 1, 2, 3, 70, 1174}) {
      CAPTURE(num_rows);
      auto permutation = fsdp::epoch_permutation(num_rows, 42, 3);
      std::sort(permutation.begin(), permutation.end());

      Rows expected(static_cast<std::size_t>(num_rows));
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(permutation == expected);
    }
  }

  TEST_CASE("epoch_permutation: frozen values, or old runs could not be continued") {
    CHECK(fsdp::epoch_permutation(10, 42, 0) == Rows{2, 8, 9, 7, 1, 4, 6, 0, 5, 3});
    CHECK(fsdp::epoch_permutation(10, 42, 1) == Rows{3, 1, 6, 8, 4, 5, 9, 7, 2, 0});
    CHECK(fsdp::epoch_permutation(10, 0, 0) == Rows{6, 3, 2, 9, 8, 1, 4, 7, 0, 5});
    const auto shakespeare = fsdp::epoch_permutation(1174, 1337, 5);
    CHECK(Rows(shakespeare.begin(), shakespeare.begin() + 6) == Rows{971, 914, 672, 1168, 527, 266});
  }

  TEST_CASE("epoch_permutation: all orders of 4 rows are about equally frequent") {
    std::array<int, 256> count{};
    const int draws = 24000;
    for (int seed = 0; seed < draws; ++seed) {
      const auto p = fsdp::epoch_permutation(4, static_cast<std::uint64_t>(seed), 0);
      ++count[static_cast<std::size_t>(p[0] * 64 + p[1] * 16 + p[2] * 4 + p[3])];
    }

    double chi_squared = 0;
    int orders = 0;
    for (const int n : count) {
      if (n == 0) continue;
      ++orders;
      chi_squared += (n - 1000.0) * (n - 1000.0) / 1000.0;
    }
    CHECK(orders == 24);
    CHECK(chi_squared < 49.7);  // 23 degrees of freedom, p = 0.001
  }

  TEST_CASE("DataOrder: walks through the epochs' permutations one after the other") {
    fsdp::Sampler order(5, 7, true);
    auto expected = fsdp::epoch_permutation(5, 7, 0);
    const auto second = fsdp::epoch_permutation(5, 7, 1);
    expected.insert(expected.end(), second.begin(), second.end());

    CHECK(order.rows(0, 10) == expected);
    CHECK(order.row(3) == expected[3]);  // back into an epoch left behind
    CHECK(fsdp::epoch_permutation(5, 7, 0) != second);
  }

  TEST_CASE("DataOrder: a fresh object continues where another stopped") {
    fsdp::Sampler first(1174, 42, true);
    const auto whole = first.rows(0, 3000);

    fsdp::Sampler resumed(1174, 42, true);
    CHECK(resumed.rows(1500, 1500) == Rows(whole.begin() + 1500, whole.end()));
  }

  TEST_CASE("DataOrder: without shuffling rows come in file order and wrap around") {
    fsdp::Sampler order(3, 7, false);

    CHECK(order.rows(1, 6) == Rows{1, 2, 0, 1, 2, 0});
  }

  TEST_CASE("DataOrder: no rows is a usage error, a negative position a bug") {
    CHECK_THROWS_AS(fsdp::Sampler(0, 1, true), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::Sampler(3, 1, true).row(-1), std::out_of_range);
  }

  TEST_CASE("micro_batch_slice: 2 ranks x 3 rows, second micro-batch clipped") {
    const auto full = fsdp::micro_batch_slice(100, 10, 0, {1, 2}, 3);
    CHECK(full.first_position == 103);
    CHECK(full.num_samples == 3);
    const auto clipped = fsdp::micro_batch_slice(100, 10, 1, {1, 2}, 3);
    CHECK(clipped.first_position == 109);
    CHECK(clipped.num_samples == 1);
    const auto empty = fsdp::micro_batch_slice(100, 9, 1, {1, 2}, 3);
    CHECK(empty.first_position == 109);
    CHECK(empty.num_samples == 0);
  }

  TEST_CASE("micro_batch_slice: every sample of a step comes up exactly once for any world and batch") {
    for (const int world : {1, 2, 3, 8}) {
      for (const std::int64_t rows : {1, 2, 5}) {
        for (const std::int64_t samples : {0, 1, 7, 16, 64}) {
          CAPTURE(world);
          CAPTURE(rows);
          CAPTURE(samples);
          const auto micro_batches = static_cast<int>((samples + world * rows - 1) / (world * rows));
          std::multiset<std::int64_t> seen;
          for (int m = 0; m < micro_batches; ++m) {
            for (int rank = 0; rank < world; ++rank) {
              const auto slice = fsdp::micro_batch_slice(1000, samples, m, {rank, world}, rows);
              for (std::int64_t i = 0; i < slice.num_samples; ++i) seen.insert(slice.first_position + i);
            }
          }

          CHECK(static_cast<std::int64_t>(seen.size()) == samples);
          CHECK((seen.empty() || (*seen.begin() == 1000 && *seen.rbegin() == 1000 + samples - 1)));
          CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == seen.size());
        }
      }
    }
  }

  TEST_CASE("micro_batch_slice: a rank outside the world is refused") {
    CHECK_THROWS_AS(fsdp::micro_batch_slice(0, 4, 0, {2, 2}, 1), std::invalid_argument);
    CHECK_THROWS_AS(fsdp::micro_batch_slice(0, 4, 0, {0, 1}, 0), std::invalid_argument);
  }
}
