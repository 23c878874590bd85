#pragma once
// Axes with round numbers.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

/// A range of values and the ticks inside it.
struct Axis {
  double low, high;  ///< low < high
  double tick_step;  ///< 1, 2 or 5 times a power of ten
  std::vector<double> ticks;
};

enum class AxisKind {
  values,  ///< the bounds are moved outwards to the next tick
  steps    ///< the bounds stay, ticks are at whole numbers
};

/// Returns an axis that contains [low, high], both finite, with about `num_ticks` ticks; equal bounds are moved apart.
Axis make_axis(double low, double high, int num_ticks, AxisKind kind);

/// Formats `value` with as many decimals as ticks at `tick_step` need and thousands separators: "0.25", "12,000".
/// Numbers from a million on are shortened: "1.5M".
std::string tick_label(double value, double tick_step);

/// Formats a count: "1,234,567".
std::string with_separators(std::int64_t value);

}  // namespace fsdp
