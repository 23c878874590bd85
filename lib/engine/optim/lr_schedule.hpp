#pragma once
// Learning rates as a pure function of the step, so that resuming needs nothing but the step.
#include <cstdint>
#include <string_view>

namespace fsdp {

struct LrSchedule {
  enum class Shape { constant, linear, cosine } shape = Shape::constant;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;  ///< linear from peak/warmup_steps up
  std::int64_t total_steps = 0;   ///< length of warm-up and decay; later steps stay at the end of the decay
  double min_ratio = 0.0;         ///< of the peak, at the end of the decay

  /// Rate of step `step`, counted from 1.
  double at(std::int64_t step) const;
};

/// constant | linear | cosine. \throws UsageError naming the choices
LrSchedule::Shape parse_lr_schedule(std::string_view text);
std::string_view to_string(LrSchedule::Shape shape);

}  // namespace fsdp
