#pragma once
// Learning rate as a pure function of the step, so that a resumed run needs only the step.
#include <cstdint>
#include <string_view>

namespace fsdp {

struct LrSchedule {
  enum class Shape { constant, linear, cosine } shape = Shape::constant;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;  ///< the rate rises linearly, starting at peak/warmup_steps
  std::int64_t total_steps = 0;   ///< length of warm-up and decay; later steps keep the final rate
  double min_ratio = 0.0;         ///< final rate as a fraction of the peak

  /// \return the learning rate of step `step`, counted from 1
  double at(std::int64_t step) const;
};

/// Parses constant, linear or cosine. \throws UsageError naming the choices
LrSchedule::Shape parse_lr_schedule(std::string_view text);
std::string_view to_string(LrSchedule::Shape shape);

}  // namespace fsdp
