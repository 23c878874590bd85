#pragma once
// Learning rate as a pure function of the step, so that a resumed run needs only the step.
#include <array>
#include <cstdint>
#include <optional>

#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// How the rate rises during a warm-up, or falls during the decay of wsd.
enum class LrCurve : std::uint8_t { linear, cosine, one_minus_sqrt };

struct LrSchedule {
  enum class Shape : std::uint8_t {
    constant,
    linear,
    cosine,               ///< `value` waves of a cosine; 0: half a wave
    cosine_restarts,      ///< `value` times from the peak to the floor; 0: once
    cosine_times_warmup,  ///< minimal_fsdp's: half a wave over all steps, times the warm-up
    polynomial,           ///< (1 - progress) to the power of `value`; 0: 1
    inverse_sqrt,         ///< 1/sqrt(1 + steps after the warm-up / `value`); 0: the warm-up's steps, else 10,000
    wsd                   ///< stays at the peak until the last `decay_steps`
  } shape = Shape::constant;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< length of warm-up and decay; later steps keep the final rate
  double min_ratio = 0.0;        ///< final rate as a fraction of the peak
  /// Rate of the first step of a warm-up as a fraction of the peak. None: 1/warmup_steps, so that the last step of the
  /// warm-up has the peak's rate; with a value the first step after the warm-up is the first to have that.
  std::optional<double> warmup_from = {};
  LrCurve warmup_curve = LrCurve::linear;
  std::int64_t decay_steps = 0;  ///< wsd
  LrCurve decay_curve = LrCurve::linear;
  double value = 0;  ///< of the shape, see there; 0: the shape's usual one

  /// \return the learning rate of step `step`, counted from 1
  double at(std::int64_t step) const;
};

/// transformers' names are further spellings.
inline constexpr std::array kLrShapes{
    NamedValue<LrSchedule::Shape>{"constant", LrSchedule::Shape::constant},
    NamedValue<LrSchedule::Shape>{"linear", LrSchedule::Shape::linear},
    NamedValue<LrSchedule::Shape>{"cosine", LrSchedule::Shape::cosine},
    NamedValue<LrSchedule::Shape>{"cosine-restarts", LrSchedule::Shape::cosine_restarts},
    NamedValue<LrSchedule::Shape>{"cosine-times-warmup", LrSchedule::Shape::cosine_times_warmup},
    NamedValue<LrSchedule::Shape>{"polynomial", LrSchedule::Shape::polynomial},
    NamedValue<LrSchedule::Shape>{"inverse-sqrt", LrSchedule::Shape::inverse_sqrt},
    NamedValue<LrSchedule::Shape>{"wsd", LrSchedule::Shape::wsd},
    NamedValue<LrSchedule::Shape>{"constant_with_warmup", LrSchedule::Shape::constant, false},
    NamedValue<LrSchedule::Shape>{"cosine_with_min_lr", LrSchedule::Shape::cosine, false},
    NamedValue<LrSchedule::Shape>{"cosine_with_restarts", LrSchedule::Shape::cosine_restarts, false},
    NamedValue<LrSchedule::Shape>{"inverse_sqrt", LrSchedule::Shape::inverse_sqrt, false},
    NamedValue<LrSchedule::Shape>{"warmup_stable_decay", LrSchedule::Shape::wsd, false}};
inline constexpr std::array kLrCurves{NamedValue<LrCurve>{"linear", LrCurve::linear},
                                      NamedValue<LrCurve>{"cosine", LrCurve::cosine},
                                      NamedValue<LrCurve>{"1-sqrt", LrCurve::one_minus_sqrt},
                                      NamedValue<LrCurve>{"sqrt", LrCurve::one_minus_sqrt, false}};

}  // namespace fsdp
