#include "lib/training/step/nonfinite_steps.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace fsdp;

namespace {

StepReport report(std::int64_t step, double loss, bool skipped, bool overflow = false) {
  StepReport made;
  made.step = step;
  made.loss = loss;
  made.grad_norm = std::numeric_limits<double>::infinity();
  made.first_sample = 8 * (step - 1);
  made.samples = 8;
  made.skipped = skipped;
  made.overflow = overflow;
  return made;
}

}  // namespace

TEST_SUITE("train/nonfinite_steps") {
  TEST_CASE("steps in a row are counted, a finite one ends the row") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    NonFiniteSteps steps(3);
    CHECK(steps.add(report(1, 2.0, false)).empty());
    CHECK_FALSE(steps.any());
    CHECK(steps.add(report(2, nan, true)) ==
          "step 2: the loss is nan, nothing was updated (samples 8 to 15 of the data order)");
    CHECK(steps.add(report(3, 2.0, true)) ==
          "step 3: the gradient norm is inf, nothing was updated (samples 16 to 23 of the data order)");
    CHECK(steps.any());
    CHECK_FALSE(steps.too_many());
    CHECK(steps.add(report(4, 2.0, false)).empty());
    CHECK_FALSE(steps.any());
    for (std::int64_t step = 5; step <= 7; ++step) {
      CHECK_FALSE(steps.too_many());
      steps.add(report(step, nan, true));
    }
    CHECK(steps.too_many());
    CHECK(
        steps.words() ==
        "3 steps in a row, 5 to 7, had a loss or a gradient norm that is not a finite number (samples 32 to 55 of the "
        "data order)");
  }

  TEST_CASE("fp16's overflows neither count nor end a row") {
    NonFiniteSteps steps(2);
    for (std::int64_t step = 1; step <= 16; ++step) CHECK(steps.add(report(step, 2.0, true, true)).empty());
    CHECK_FALSE(steps.any());
    steps.add(report(17, 2.0, true));
    steps.add(report(18, 2.0, true, true));
    CHECK(steps.any());
    steps.add(report(19, 2.0, true));
    CHECK(steps.too_many());
  }
}
