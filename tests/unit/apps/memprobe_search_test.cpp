#include <doctest/doctest.h>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/types/error.hpp"

namespace {

std::vector<std::int64_t> up_to(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= n; ++i) all.push_back(i);
  return all;
}

}  // namespace

TEST_SUITE("jobs/memprobe_search") {
  TEST_CASE("largest_that_fits() finds the largest batch from any guess") {
    for (const std::int64_t truth : {0, 1, 2, 7, 63, 64}) {
      for (const std::int64_t guess : {0, 1, 5, 40, 64, 9999}) {
        const auto passes = [&](std::int64_t batch) { return batch <= truth; };
        CHECK(fsdp::detail::largest_that_fits(up_to(64), guess, passes) == truth);
      }
    }
    CHECK(fsdp::detail::largest_that_fits({}, 3, [](std::int64_t) { return true; }) == 0);
  }

  TEST_CASE("a total batch size allows the batches that divide a rank's share") {
    fsdp::TrainOptions options;
    options.total_batch_size = 48;

    CHECK(fsdp::detail::allowed_batches(options, 4, 100) == std::vector<std::int64_t>{1, 2, 3, 4, 6, 12});
    CHECK(fsdp::detail::allowed_batches(options, 4, 3) == std::vector<std::int64_t>{1, 2, 3});
    CHECK_THROWS_AS(fsdp::detail::allowed_batches(options, 5, 100), fsdp::UsageError);
  }

  TEST_CASE("rank_counts() tries a node's ranks, then whole nodes, that divide the total batch") {
    fsdp::TrainOptions options;
    options.batch_size = 2;
    using Counts = std::vector<std::int64_t>;
    CHECK(fsdp::detail::rank_counts(options, 4, 17) == Counts{1, 2, 3, 4, 8, 12, 16});
    CHECK(fsdp::detail::rank_counts(options, 4, 3) == Counts{1, 2, 3});
    CHECK(fsdp::detail::rank_counts(options, 1, 3) == Counts{1, 2, 3});
    options.total_batch_size = 32;
    CHECK(fsdp::detail::rank_counts(options, 4, 100) == Counts{1, 2, 4, 8, 16});
  }

  TEST_CASE("search_ranks() keeps the levers that save ranks, and leaves out what does not fit") {
    using fsdp::detail::Combination;
    const std::vector<std::int64_t> counts{1, 2, 3, 4, 8, 12, 16};
    // Recomputation saves 40 of 120 units, an 8-bit optimizer 30 and offload none; a rank has 10.
    const auto predict = [](const Combination& c, unsigned levers) {
      fsdp::MemoryPrediction prediction;
      std::int64_t units = 120;
      if ((levers & fsdp::detail::kRecompute) != 0) units -= 40;
      if ((levers & fsdp::detail::kEightBit) != 0) units -= 30;
      CHECK((c.checkpoint_every == 1) == ((levers & fsdp::detail::kRecompute) != 0));
      prediction.profile.peak_bytes = c.sharding == fsdp::Sharding::no_shard ? units : units / c.ranks;
      return prediction;
    };
    const auto fits = [](const fsdp::MemoryPrediction& p) { return p.profile.peak_bytes <= 10; };
    const std::vector<Combination> starts{{.sharding = fsdp::Sharding::full_shard, .ranks_per_node = 4},
                                          {.sharding = fsdp::Sharding::no_shard, .ranks_per_node = 4}};
    const auto found = [&](unsigned levers) {
      std::vector<std::pair<int, unsigned>> rows;
      for (const auto& answer : fsdp::detail::search_ranks(starts, levers, counts, predict, fits)) {
        CHECK(answer.combination.sharding == fsdp::Sharding::full_shard);
        CHECK(fits(answer.prediction));
        rows.emplace_back(answer.combination.ranks, answer.levers);
      }
      return rows;
    };
    using Rows = std::vector<std::pair<int, unsigned>>;
    CHECK(found(0) == Rows{{12, 0}});
    // 90 units need 12 ranks as 120 do; 80 need 8, and 50 do, too.
    CHECK(found(fsdp::detail::kRecompute | fsdp::detail::kEightBit | fsdp::detail::kOffload) ==
          Rows{{8, fsdp::detail::kRecompute}, {12, 0}});
    CHECK(fsdp::detail::search_ranks(starts, 7, {}, predict, fits).empty());
  }
}
