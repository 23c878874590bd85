#include "lib/training/evaluate/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fsdp {
namespace {

double spread(double squares, std::int64_t units) {
  if (units < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto n = static_cast<double>(units);
  return std::sqrt(n / (n - 1) * squares);
}

}  // namespace

double Estimate::standard_error() const {
  double squares = 0;
  for (const double part : influence) squares += part * part;
  return spread(squares, units);
}

Interval Estimate::interval(double lowest, double highest) const {
  const double reach = kNormalQuantile * standard_error();
  if (std::isnan(value) || std::isnan(reach)) return {};
  return {std::max(lowest, value - reach), std::min(highest, value + reach)};
}

Estimate ratio(std::span<const double> numerators, std::span<const double> denominators) {
  if (numerators.size() != denominators.size()) throw std::logic_error("a ratio of sums over different units");
  double above = 0, below = 0;
  Estimate result;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    above += numerators[i];
    below += denominators[i];
    if (denominators[i] != 0) ++result.units;
  }
  if (below == 0) return result;
  result.value = above / below;
  result.influence.resize(numerators.size());
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    result.influence[i] = (numerators[i] - result.value * denominators[i]) / below;
  }
  return result;
}

Estimate mapped(const Estimate& estimate, double value, double slope) {
  auto result = estimate;
  result.value = value;
  for (double& part : result.influence) part *= slope;
  return result;
}

double standard_error_of_difference(const Estimate& a, const Estimate& b) {
  if (a.influence.size() != b.influence.size()) return std::hypot(a.standard_error(), b.standard_error());
  double squares = 0;
  for (std::size_t i = 0; i < a.influence.size(); ++i) {
    const double part = b.influence[i] - a.influence[i];
    squares += part * part;
  }
  return spread(squares, std::max(a.units, b.units));
}

Interval wilson_interval(std::int64_t successes, std::int64_t trials) {
  if (trials == 0) return {};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double z2 = kNormalQuantile * kNormalQuantile;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double reach = kNormalQuantile / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {std::max(0.0, center - reach), std::min(1.0, center + reach)};
}

}  // namespace fsdp
