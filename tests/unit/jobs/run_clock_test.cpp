#include "lib/jobs/finetune/run_clock.hpp"

#include <doctest/doctest.h>

using fsdp::detail::RunClock;

namespace {

/// Nothing but the seconds of a step.
fsdp::StepReport step_of(double seconds) {
  fsdp::StepReport step;
  step.seconds = seconds;
  return step;
}

}  // namespace

TEST_SUITE("jobs/run_clock") {
  TEST_CASE("RunClock: a validation must fit with the save after it, a step that is made no more") {
    RunClock clock(100);
    clock.after_save(20);  // 45 s with what is in hand
    clock.after_step(step_of(20), false);
    CHECK(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    clock.after_validation(50);
    CHECK(clock.has_time_to_validate());
    clock.after_validation(60);
    clock.after_validation(10);  // the longest counts
    CHECK_FALSE(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    clock.after_step(step_of(50), false);
    CHECK(clock.stop_wanted());
    CHECK_FALSE(clock.must_end());
    clock.after_save(48);
    CHECK(clock.must_end());
  }

  TEST_CASE("RunClock: without a limit all fits") {
    RunClock clock(0);
    clock.after_validation(1e9);
    clock.after_save(1e9);
    CHECK(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    CHECK_FALSE(clock.must_end());
  }
}
