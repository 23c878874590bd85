#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/engine/optim/lr_schedule.hpp"

using namespace fsdp;
using Kind = LrSchedule::Shape;

namespace {

/// The schedule of transformers' get_scheduler() with these arguments: a case of tests/fixtures/schedules/rates.json.
LrSchedule schedule_of(const nlohmann::json& theirs) {
  const auto& options = theirs["options"];
  const auto number = [&](const char* name, double otherwise) { return options.value(name, otherwise); };
  auto name = theirs["scheduler"].get<std::string>();
  LrSchedule ours;
  ours.peak = theirs["lr"];
  ours.warmup_steps = theirs["num_warmup_steps"];
  ours.total_steps = theirs["num_training_steps"];
  ours.warmup_from = 0.0;
  ours.value = number("num_cycles", number("power", number("timescale", 0)));
  ours.min_ratio = number("min_lr", number("lr_end", 0)) / ours.peak;
  if (options.contains("min_lr_rate")) ours.min_ratio = options["min_lr_rate"];
  if (name == "cosine_warmup_with_min_lr") {  // one step ahead of the others, in warm-up and decay
    ours.warmup_from = number("warmup_lr_rate", 1.0 / static_cast<double>(ours.warmup_steps));
    --ours.warmup_steps;
    --ours.total_steps;
    name = "cosine";
  }
  ours.shape = parse_value(kLrShapes, name, "--lr-schedule");
  if (ours.shape != Kind::wsd) return ours;
  ours.min_ratio = number("min_lr_ratio", 0);
  ours.warmup_from = ours.min_ratio;
  ours.decay_steps = options["num_decay_steps"];
  if (options.contains("num_stable_steps"))
    ours.total_steps = ours.warmup_steps + options["num_stable_steps"].get<std::int64_t>() + ours.decay_steps;
  ours.warmup_curve = parse_value(kLrCurves, options.value("warmup_type", std::string("linear")), "--warmup-shape");
  ours.decay_curve = parse_value(kLrCurves, options.value("decay_type", std::string("cosine")), "--decay-shape");
  return ours;
}

}  // namespace

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

  TEST_CASE("at: the rates of transformers' schedules, to the last digits of a double") {
    std::ifstream file(FSDP_FIXTURE_DIR "/schedules/rates.json");
    const auto schedules = nlohmann::json::parse(file)["schedules"];
    CHECK(schedules.size() == 24);
    for (const auto& [name, theirs] : schedules.items()) {
      CAPTURE(name);
      const auto ours = schedule_of(theirs);
      const auto& rates = theirs["rates"];
      REQUIRE(rates.size() == 200);
      double worst = 0;
      for (std::size_t i = 0; i < rates.size(); ++i)
        worst = std::max(worst, std::abs(ours.at(static_cast<std::int64_t>(i) + 1) - rates[i].get<double>()));
      CHECK(worst < 1e-15);
    }
  }

  TEST_CASE("at: minimal_fsdp's CosineWarmupScheduler, whose cosine counts the warm-up") {
    LrSchedule schedule{Kind::cosine_times_warmup, 1e-3, 10, 50, 0.0};
    // Its get_lr_factor() in Python, for 0, 1, 5, 10, 11, 25 and 49 steps before.
    for (const auto& [before, rate] :
         {std::pair{0, 0.0}, std::pair{1, 9.990133642141359e-05}, std::pair{5, 0.0004877641290737884},
          std::pair{10, 0.0009045084971874737}, std::pair{11, 0.0008852566213878947}, std::pair{25, 0.0005},
          std::pair{49, 9.866357858642206e-07}})
      CHECK(std::abs(schedule.at(before + 1) - rate) < 1e-18);
    CHECK(schedule.at(51) == 0.0);
    CHECK(schedule.at(90) == 0.0);  // minimal_fsdp's would rise again
    schedule.warmup_steps = 0;
    CHECK(schedule.at(1) == 1e-3);
  }

  TEST_CASE("at: wsd stays at the peak up to the decay, of any length and shape") {
    for (const auto curve : {LrCurve::linear, LrCurve::cosine, LrCurve::one_minus_sqrt}) {
      LrSchedule schedule{.shape = Kind::wsd, .peak = 2.0, .warmup_steps = 3, .total_steps = 20, .min_ratio = 0.25};
      schedule.decay_curve = curve;
      schedule.decay_steps = 8;
      for (std::int64_t step = 3; step <= 13; ++step) CHECK(schedule.at(step) == 2.0);
      for (std::int64_t step = 14; step <= 21; ++step) CHECK(schedule.at(step) < schedule.at(step - 1));
      CHECK(schedule.at(21) == 0.5);
      CHECK(schedule.at(999) == 0.5);
      // The same stable part, then a shorter run with a decay of its own: rates before the decay are equal.
      auto cooled = schedule;
      cooled.total_steps = 12;
      cooled.decay_steps = 4;
      for (std::int64_t step = 1; step <= 9; ++step) CHECK(cooled.at(step) == schedule.at(step));
      CHECK(cooled.at(13) == 0.5);
    }
  }

  TEST_CASE("kLrShapes: reads back what it names, and names the choices otherwise") {
    for (const auto& row : kLrShapes)
      CHECK((parse_value(kLrShapes, name_of(kLrShapes, row.value), "--lr-schedule") == row.value));
    CHECK_THROWS_WITH_AS(parse_value(kLrShapes, "step", "--lr-schedule"),
                         "--lr-schedule is 'step', choose from constant, linear, cosine, cosine-restarts, "
                         "cosine-times-warmup, polynomial, inverse-sqrt, wsd",
                         UsageError);
  }
}
