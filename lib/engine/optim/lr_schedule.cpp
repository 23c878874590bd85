#include "lib/engine/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {

double LrSchedule::at(std::int64_t step) const {
  if (warmup_steps > 0 && step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (shape == Shape::constant || total_steps <= warmup_steps) return peak;
  // Decay starts at the step after the warm-up. With min_ratio 0 the rate of the last step is still above 0.
  const double progress = std::clamp(
      static_cast<double>(step - 1 - warmup_steps) / static_cast<double>(total_steps - warmup_steps), 0.0, 1.0);
  const double factor = shape == Shape::linear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (min_ratio + (1.0 - min_ratio) * factor);
}

}  // namespace fsdp
