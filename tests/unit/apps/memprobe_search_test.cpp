#include <doctest/doctest.h>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/error.hpp"

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
}
