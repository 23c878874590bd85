#include "lib/planning/speed/speed_outcome.hpp"

#include <doctest/doctest.h>

using namespace fsdp;

TEST_SUITE("speed/outcome") {
  TEST_CASE("beside_prediction: a large error is given as a factor") {
    const auto words = [](double seconds) {
      SpeedOutcome outcome;
      outcome.seconds = seconds;
      outcome.predicted.seconds = 2;
      return beside_prediction(outcome);
    };
    CHECK(words(5.868) == "2.9 times slower than predicted: is the machine busy?");
    CHECK(words(2.1) == "prediction +5.0 %");
    CHECK(words(1.8) == "prediction -10.0 %");
    CHECK(words(0.5) == "4.0 times faster than predicted");
  }
}
