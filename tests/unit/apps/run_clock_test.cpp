#include "lib/training/run/run_clock.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "tests/support/environment.hpp"

using fsdp::detail::RunClock;

namespace {

/// Returns a report that has only the duration of a step.
fsdp::StepReport step_of(double seconds) {
  fsdp::StepReport step;
  step.seconds = seconds;
  return step;
}

}  // namespace

TEST_SUITE("jobs/run_clock") {
  TEST_CASE("RunClock: a validation needs time for itself and the save after it, but for no further step") {
    RunClock clock(100);
    clock.after_save(20);  // 45 s including the reserve
    clock.after_step(step_of(20), false);
    CHECK(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    CHECK_FALSE(clock.stop_wanted(1));
    CHECK(clock.stop_wanted(2));  // 3.5 steps and the save
    clock.after_validation(50);
    CHECK(clock.has_time_to_validate());
    clock.after_validation(60);
    clock.after_validation(10);  // the longest validation counts
    CHECK_FALSE(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    clock.after_step(step_of(50), false);
    CHECK(clock.stop_wanted());
    CHECK_FALSE(clock.must_end());
    clock.after_save(48);
    CHECK(clock.must_end());
  }

  TEST_CASE("RunClock: without a time limit everything fits") {
    RunClock clock(0);
    clock.after_validation(1e9);
    clock.after_save(1e9);
    CHECK(clock.has_time_to_validate());
    CHECK_FALSE(clock.stop_wanted());
    CHECK_FALSE(clock.must_end());
  }

  TEST_CASE("RunClock: the scheduler's end time counts unless it was past when the run began") {
    using std::chrono::system_clock;
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
    const auto stops = [](const std::string& end, bool is_told) {
      const fsdp::test::Environment environment({{"SLURM_JOB_END_TIME", end}});
      RunClock clock(0);
      CHECK((clock.warning().find("SLURM_JOB_END_TIME=" + end) != std::string::npos) == is_told);
      return clock.stop_wanted();
    };
    CHECK(stops(std::to_string(now + 3), false));
    CHECK_FALSE(stops(std::to_string(now + 3600), false));
    CHECK_FALSE(stops("1000000000", true));
    CHECK_FALSE(stops(std::to_string(now - 1), true));
    for (const char* none : {"abc", "0", "", "99999999999999999"}) CHECK_FALSE(stops(none, false));
  }
}
