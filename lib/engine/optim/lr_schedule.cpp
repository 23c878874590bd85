#include "lib/engine/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {
namespace {

using std::numbers::pi;

/// From 0 to 1 for a progress from 0 to 1.
double risen(LrCurve curve, double progress) {
  switch (curve) {
    case LrCurve::linear:
      return progress;
    case LrCurve::cosine:
      return 0.5 * (1.0 - std::cos(pi * progress));
    case LrCurve::one_minus_sqrt:
      return 1.0 - std::sqrt(1.0 - progress);
  }
  return progress;
}

/// From 1 to 0 for a progress from 0 to 1. \param waves  of a cosine
double fallen(LrCurve curve, double progress, double waves) {
  switch (curve) {
    case LrCurve::linear:
      return 1.0 - progress;
    case LrCurve::cosine:
      return 0.5 * (1.0 + std::cos(2.0 * pi * waves * progress));
    case LrCurve::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 1.0 - progress;
}

double or_else(double value, double usual) { return value > 0 ? value : usual; }

/// Part of the way from the floor to the peak after the warm-up. \param before  steps before this one
double height(const LrSchedule& s, double before) {
  using Shape = LrSchedule::Shape;
  const auto total = static_cast<double>(s.total_steps), warmup = static_cast<double>(s.warmup_steps);
  const auto progress_from = [&](double begin) {
    return std::clamp((before - begin) / std::max(1.0, total - begin), 0.0, 1.0);
  };
  switch (s.shape) {
    case Shape::constant:
      return 1.0;
    case Shape::linear:
      return fallen(LrCurve::linear, progress_from(warmup), 0);
    case Shape::cosine:
      return fallen(LrCurve::cosine, progress_from(warmup), or_else(s.value, 0.5));
    case Shape::cosine_times_warmup:
      return fallen(LrCurve::cosine, progress_from(0), 0.5);
    case Shape::cosine_restarts: {
      const auto progress = progress_from(warmup);
      return progress < 1 ? fallen(LrCurve::cosine, std::fmod(or_else(s.value, 1) * progress, 1.0), 0.5) : 0.0;
    }
    case Shape::polynomial:
      return std::pow(1.0 - progress_from(warmup), or_else(s.value, 1));
    case Shape::inverse_sqrt: {
      const auto scale = or_else(s.value, or_else(warmup, 10'000));
      return 1.0 / std::sqrt((before - warmup + scale) / scale);
    }
    case Shape::wsd: {
      const auto begin = total - static_cast<double>(s.decay_steps);
      if (before < begin) return 1.0;
      // The floor is exact, also after a cosine of whole waves, which ends at the peak.
      return before < total ? fallen(s.decay_curve, progress_from(begin), or_else(s.value, 0.5)) : 0.0;
    }
  }
  return 1.0;
}

}  // namespace

double LrSchedule::at(std::int64_t step) const {
  const bool rises = warmup_steps > 0 && step <= warmup_steps;
  const bool times = shape == Shape::cosine_times_warmup;
  const double start = warmup_from.value_or(0.0);
  double share = 1.0;
  if (rises) {
    if (!warmup_from && !times && warmup_curve == LrCurve::linear)
      return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
    const auto steps = warmup_from || times ? step - 1 : step;
    share = start + (1.0 - start) * risen(warmup_curve, static_cast<double>(steps) / static_cast<double>(warmup_steps));
    if (!times) return peak * share;
  }
  if (total_steps <= warmup_steps && !times && shape != Shape::inverse_sqrt) return peak;
  // Decay starts at the step after the warm-up. With min_ratio 0 the rate of the last step is still above 0.
  const auto at_peak = height(*this, static_cast<double>(step - 1));
  return peak * (min_ratio + (1.0 - min_ratio) * at_peak) * share;
}

}  // namespace fsdp
