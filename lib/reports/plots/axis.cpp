#include "lib/reports/plots/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fsdp {
namespace {

double nice_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  if (digit < 1.5) return power;
  if (digit < 3.5) return 2 * power;
  if (digit < 7.5) return 5 * power;
  return 10 * power;
}

int decimals_of(double step) { return std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9))); }

}  // namespace

Axis make_axis(double low, double high, int num_ticks, AxisKind kind) {
  if (!(high - low > 1e-9 * std::max(std::abs(low), std::abs(high)))) {
    const double room = std::max(kind == AxisKind::steps ? 1.0 : 0.5, std::abs(low) * 0.1);
    low -= room;
    high += room;
  }
  Axis axis{low, high, nice_step((high - low) / num_ticks), {}};
  if (kind == AxisKind::steps) {
    axis.tick_step = std::max(1.0, axis.tick_step);
  } else {
    axis.low = std::floor(low / axis.tick_step + 1e-9) * axis.tick_step;
    axis.high = std::ceil(high / axis.tick_step - 1e-9) * axis.tick_step;
  }
  const double first = std::ceil(axis.low / axis.tick_step - 1e-9);
  const double last = std::floor(axis.high / axis.tick_step + 1e-9);
  for (double i = first; i <= last; ++i) axis.ticks.push_back(i * axis.tick_step);
  return axis;
}

std::string with_separators(std::int64_t value) {
  auto digits = std::to_string(value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string tick_label(double value, double tick_step) {
  if (std::abs(value) < tick_step * 1e-6) return "0";
  if (std::abs(value) >= 1e12) return fmt::format("{:g}", value);
  if (tick_step >= 1e5) return fmt::format("{:g}M", value / 1e6);
  if (tick_step >= 1) return with_separators(std::llround(value));
  return fmt::format("{:.{}f}", value, decimals_of(tick_step));
}

}  // namespace fsdp
