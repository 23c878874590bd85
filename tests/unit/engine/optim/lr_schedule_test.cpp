#include <doctest/doctest.h>

#include <cmath>

#include "lib/base/error.hpp"
#include "lib/engine/optim/lr_schedule.hpp"

using namespace fsdp;
using Kind = LrSchedule::Shape;

TEST_SUITE("optim/lr_schedule") {
  TEST_CASE("at: a constant schedule") {
    const LrSchedule schedule{Kind::constant, 0.5, 0, 0, 0.0};
    for (const std::int64_t step : {1, 2, 1000}) CHECK(schedule.at(step) == 0.5);
  }

  TEST_CASE("at: warm-up rises in equal steps to the peak, for every shape") {
    for (const auto shape : {Kind::constant, Kind::linear, Kind::cosine}) {
      const LrSchedule schedule{shape, 2.0, 4, 10, 0.0};
      CHECK(schedule.at(1) == 0.5);
      CHECK(schedule.at(2) == 1.0);
      CHECK(schedule.at(4) == 2.0);
      CHECK(schedule.at(5) == 2.0);  // decay starts at the peak
    }
  }

  TEST_CASE("at: linear and cosine decay to the floor and stay there") {
    const LrSchedule linear{Kind::linear, 1.0, 0, 10, 0.1};
    CHECK(linear.at(1) == doctest::Approx(1.0));
    CHECK(linear.at(6) == doctest::Approx(0.55));
    CHECK(linear.at(11) == doctest::Approx(0.1));
    CHECK(linear.at(500) == doctest::Approx(0.1));
    const LrSchedule cosine{Kind::cosine, 1.0, 0, 10, 0.1};
    CHECK(cosine.at(1) == doctest::Approx(1.0));
    CHECK(cosine.at(6) == doctest::Approx(0.55));
    CHECK(cosine.at(3) == doctest::Approx(0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * 0.2))));
    CHECK(cosine.at(500) == doctest::Approx(0.1));
  }

  TEST_CASE("at: never rises after the warm-up, is never negative, and is positive at the last step") {
    for (const auto shape : {Kind::linear, Kind::cosine}) {
      const LrSchedule schedule{shape, 1.0, 7, 50, 0.0};
      for (std::int64_t step = 8; step < 60; ++step) {
        CHECK(schedule.at(step + 1) <= schedule.at(step));
        CHECK(schedule.at(step) >= 0.0);
      }
      CHECK(schedule.at(50) > 0.0);
    }
  }

  TEST_CASE("at: a warm-up as long as the schedule ends at the peak") {
    const LrSchedule schedule{Kind::cosine, 1.0, 10, 10, 0.0};
    CHECK(schedule.at(10) == 1.0);
    CHECK(schedule.at(11) == 1.0);
  }

  TEST_CASE("kLrShapes: reads back what it names, and names the choices otherwise") {
    for (const auto shape : {Kind::constant, Kind::linear, Kind::cosine})
      CHECK((parse_value(kLrShapes, name_of(kLrShapes, shape), "--lr-schedule") == shape));
    CHECK_THROWS_WITH_AS(parse_value(kLrShapes, "step", "--lr-schedule"),
                         "--lr-schedule is 'step', choose from constant, linear, cosine", UsageError);
  }
}
