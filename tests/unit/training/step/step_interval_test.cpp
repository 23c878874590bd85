#include "lib/training/step/step_interval.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace {

/// The steps up to `last` on which the interval falls.
std::vector<std::int64_t> steps_of(double every, std::int64_t last) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= last; ++step) {
    if (fsdp::falls_on(step, every)) steps.push_back(step);
  }
  return steps;
}

}  // namespace

TEST_SUITE("train/step_interval") {
  TEST_CASE("steps, epochs and parts of them are read; all else is no interval") {
    CHECK(fsdp::parse_step_interval("100").value().steps == 100);
    CHECK(fsdp::parse_step_interval("1epoch").value().epochs == 1);
    CHECK(fsdp::parse_step_interval("0.25epochs").value().epochs == 0.25);
    CHECK(fsdp::parse_step_interval("0").value().never());
    CHECK_FALSE(fsdp::parse_step_interval("2epochs").value().never());
    for (const auto* text : {"", "-1", "0.5", "1e3", "epoch", "-1epoch", "0epoch", "nanepoch", "1 epoch", "1epochs2",
                             "99999999999999999999"}) {
      CAPTURE(text);
      CHECK_FALSE(fsdp::parse_step_interval(text));
    }
  }

  TEST_CASE("whole steps fall on their multiples, an epoch on the step that ends it") {
    CHECK(steps_of(3, 10) == std::vector<std::int64_t>{3, 6, 9});
    CHECK(steps_of(0, 10).empty());
    // 70 rows by 8 are 8.75 steps: an epoch ends within a step, whose end is the first moment after it.
    const auto epoch = fsdp::parse_step_interval("1epoch").value().in_steps(70, 8);
    CHECK(epoch == 8.75);
    CHECK(steps_of(epoch, 35) == std::vector<std::int64_t>{9, 18, 27, 35});
    CHECK(steps_of(0.5 * epoch, 18) == std::vector<std::int64_t>{5, 9, 14, 18});
    CHECK(steps_of(0.3, 3) == std::vector<std::int64_t>{1, 2, 3});  // more often than a step: each
  }

  TEST_CASE("rounding does not put the end of an epoch off by a step") {
    for (std::int64_t rows = 1; rows < 200; ++rows) {
      const auto epoch = fsdp::parse_step_interval("1epoch").value().in_steps(rows, 7);
      for (std::int64_t n = 1; n <= 50; ++n) {
        const auto last = (n * rows + 6) / 7;  // the first step at whose end n epochs are read
        if (!fsdp::falls_on(last, epoch)) FAIL("rows ", rows, " epoch ", n);
      }
    }
  }
}
