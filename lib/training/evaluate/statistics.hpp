#pragma once
// Figures with their uncertainty: ratios of sums over sequences, and how far two of them are apart.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace fsdp {

/// 95 % of a normal distribution lie within this many standard errors.
constexpr double kNormalQuantile = 1.959963984540054;

/// A range that holds the figure with 95 % confidence.
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// A figure over units that are drawn independently: sequences, games, positions. What lies inside a unit (the tokens
/// of a sequence, the moves of a game) hangs together, so the unit is what is counted.
struct Estimate {
  double value = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> influence;  ///< by unit: what its presence adds to `value`, to first order
  std::int64_t units = 0;         ///< that count; the others have no influence

  /// NaN for fewer than 2 units.
  double standard_error() const;
  /// value +- 1.96 standard errors, cut to [lowest, highest].
  Interval interval(double lowest, double highest) const;
};

/// sum(numerators) / sum(denominators), summed in the units' order; a unit whose denominator is 0 does not count.
/// Source: the linearised variance of a ratio estimator, Cochran, Sampling Techniques, 3rd ed., section 2.11.
Estimate ratio(std::span<const double> numerators, std::span<const double> denominators);

/// f(estimate) by its value and slope there (the delta method).
Estimate mapped(const Estimate& estimate, double value, double slope);

/// Standard error of b - a, paired by unit where both have the same ones: what is hard for both cancels.
double standard_error_of_difference(const Estimate& a, const Estimate& b);

/// Wilson's interval of a proportion: sound for few trials and for proportions near 0 and 1.
Interval wilson_interval(std::int64_t successes, std::int64_t trials);

}  // namespace fsdp
