#pragma once
// Learning rate as a pure function of the step, so that a resumed run needs only the step.
#include <array>
#include <cstdint>

#include "lib/base/named_values.hpp"

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

inline constexpr std::array kLrShapes{NamedValue<LrSchedule::Shape>{"constant", LrSchedule::Shape::constant},
                                      NamedValue<LrSchedule::Shape>{"linear", LrSchedule::Shape::linear},
                                      NamedValue<LrSchedule::Shape>{"cosine", LrSchedule::Shape::cosine}};

}  // namespace fsdp
