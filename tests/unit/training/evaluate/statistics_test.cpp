#include "lib/training/evaluate/statistics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using fsdp::ratio;

TEST_SUITE("eval/statistics") {
  TEST_CASE("ratio: with equal denominators it is a mean, and its standard error the usual one") {
    const std::vector<double> x{1, 2, 4, 5}, ones(4, 1.0);
    const auto mean = ratio(x, ones);

    CHECK(mean.value == 3);
    // Sample variance (4 + 1 + 1 + 4) / 3, over 4.
    CHECK(mean.standard_error() == doctest::Approx(std::sqrt(10.0 / 3 / 4)));
    CHECK(mean.interval(0, 4).low == doctest::Approx(3 - 1.959964 * std::sqrt(10.0 / 12)));
    CHECK(mean.interval(0, 4).high == 4);
  }

  TEST_CASE("ratio: the standard error is the spread over repeated samples, for units of unequal size") {
    std::mt19937_64 random(7);
    std::exponential_distribution<double> sizes(0.1);
    std::normal_distribution<double> noise(0, 0.5);
    double sum = 0, squares = 0, errors = 0;
    constexpr int kSamples = 2000;
    for (int s = 0; s < kSamples; ++s) {
      std::vector<double> above, below;
      for (int i = 0; i < 60; ++i) {
        below.push_back(1 + std::floor(sizes(random)));
        above.push_back(below.back() * (2 + noise(random)));
      }
      const auto estimate = ratio(above, below);
      sum += estimate.value;
      squares += estimate.value * estimate.value;
      errors += estimate.standard_error();
    }
    const double mean = sum / kSamples;
    const double spread = std::sqrt(squares / kSamples - mean * mean);

    CHECK(mean == doctest::Approx(2).epsilon(0.01));
    CHECK(errors / kSamples == doctest::Approx(spread).epsilon(0.08));
  }

  TEST_CASE("ratio: units without a denominator do not count, and one unit has no error") {
    const auto one = ratio(std::vector<double>{3, 0}, std::vector<double>{2, 0});

    CHECK(one.value == 1.5);
    CHECK(one.units == 1);
    CHECK(std::isnan(one.standard_error()));
    CHECK(std::isnan(one.interval(0, 1).low));
    CHECK(std::isnan(ratio({}, {}).value));
    CHECK(std::isnan(ratio(std::vector<double>{NAN, 1}, std::vector<double>{1, 1}).standard_error()));
  }

  TEST_CASE("mcnemar: the exact two-sided test") {
    // Computed with whole numbers: 2 sum_(k <= min) choose(n, k) / 2^n
    CHECK(fsdp::mcnemar(0, 0).p == 1);
    CHECK(fsdp::mcnemar(5, 5).p == 1);
    CHECK(fsdp::mcnemar(1, 6).p == doctest::Approx(0.125).epsilon(1e-12));
    CHECK(fsdp::mcnemar(21, 9).p == doctest::Approx(0.04277394525706768).epsilon(1e-10));
    CHECK(fsdp::mcnemar(0, 20).p == doctest::Approx(1.9073486328125e-06).epsilon(1e-10));
    CHECK(fsdp::mcnemar(1040, 1200).p == doctest::Approx(0.0007772381454145827).epsilon(1e-8));
  }

  TEST_CASE("standard_error_of_difference: what both have in common cancels") {
    const std::vector<double> ones(4, 1.0), a{1, 5, 9, 2}, b{1.5, 5.5, 9.5, 2.5};
    const auto of_a = ratio(a, ones), of_b = ratio(b, ones);

    CHECK(fsdp::standard_error_of_difference(of_a, of_b) == doctest::Approx(0));
    CHECK(of_a.standard_error() > 1);
    const auto other = ratio(std::vector<double>{1, 2, 3}, std::vector<double>(3, 1.0));
    CHECK(fsdp::standard_error_of_difference(of_a, other) ==
          doctest::Approx(std::hypot(of_a.standard_error(), other.standard_error())));
  }

  TEST_CASE("mapped: the error goes with the slope") {
    const auto loss = ratio(std::vector<double>{2, 3}, std::vector<double>{1, 1});
    const auto perplexity = fsdp::mapped(loss, std::exp(2.5), std::exp(2.5));

    CHECK(perplexity.standard_error() == doctest::Approx(std::exp(2.5) * loss.standard_error()));
  }

  TEST_CASE("wilson_interval: values of the literature, and ends that stay in [0, 1]") {
    // Brown, Cai, DasGupta 2001; R's prop.test(15, 50, correct = FALSE).
    const auto some = fsdp::wilson_interval(15, 50);
    CHECK(some.low == doctest::Approx(0.1910).epsilon(0.001));
    CHECK(some.high == doctest::Approx(0.4375).epsilon(0.001));
    CHECK(fsdp::wilson_interval(0, 10).low == 0);
    CHECK(fsdp::wilson_interval(0, 10).high == doctest::Approx(0.2775).epsilon(0.001));
    CHECK(fsdp::wilson_interval(10, 10).high == doctest::Approx(1));
    CHECK(std::isnan(fsdp::wilson_interval(0, 0).low));
  }
}
