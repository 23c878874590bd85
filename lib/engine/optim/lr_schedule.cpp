#include "lib/engine/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lib/base/error.hpp"

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

LrSchedule::Shape parse_lr_schedule(std::string_view text) {
  if (text == "constant") return LrSchedule::Shape::constant;
  if (text == "linear") return LrSchedule::Shape::linear;
  if (text == "cosine") return LrSchedule::Shape::cosine;
  throw UsageError("--lr-schedule is '" + std::string(text) + "', choose from constant, linear, cosine");
}

std::string_view to_string(LrSchedule::Shape shape) {
  switch (shape) {
    case LrSchedule::Shape::constant:
      return "constant";
    case LrSchedule::Shape::linear:
      return "linear";
    case LrSchedule::Shape::cosine:
      return "cosine";
  }
  return "?";
}

}  // namespace fsdp
