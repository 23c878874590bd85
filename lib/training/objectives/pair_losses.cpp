#include "lib/training/objectives/pair_losses.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <stdexcept>

namespace fsdp {
namespace {

using Value = PairValue;

Value operator+(const Value& a, const Value& b) {
  return {a.value + b.value, a.by_chosen + b.by_chosen, a.by_rejected + b.by_rejected};
}
Value operator*(const Value& a, double factor) {
  return {a.value * factor, a.by_chosen * factor, a.by_rejected * factor};
}
Value operator/(const Value& a, const at::Tensor& by) { return {a.value / by, a.by_chosen / by, a.by_rejected / by}; }
Value operator+(const Value& a, double more) { return {a.value + more, a.by_chosen, a.by_rejected}; }
Value operator-(const Value& a) { return a * -1; }
Value operator-(const Value& a, const Value& b) { return a + -b; }
Value operator*(const Value& a, const Value& b) {
  return {a.value * b.value, a.by_chosen * b.value + a.value * b.by_chosen,
          a.by_rejected * b.value + a.value * b.by_rejected};
}
/// A function of one value. \param slope  its derivative there
Value of(const Value& x, const at::Tensor& value, const at::Tensor& slope) {
  return {value, x.by_chosen * slope, x.by_rejected * slope};
}
Value sigmoid(const Value& x) {
  const auto y = at::sigmoid(x.value);
  return of(x, y, y * (1 - y));
}
Value log_sigmoid(const Value& x) { return of(x, at::log_sigmoid(x.value), at::sigmoid(-x.value)); }
Value relu(const Value& x) { return of(x, x.value.clamp_min(0), x.value.gt(0).to(at::kDouble)); }
/// log(1 - e^x) of x < 0; a mean of answers that are certain is 0 by rounding.
Value log_one_less_exp(const Value& x) {
  const auto below = x.value.clamp_max(-1e-9);
  return of(x, at::expm1(below).neg().log(), at::expm1(-below).reciprocal().neg());
}

/// Both sides as values.
struct Sides {
  explicit Sides(const PairSides& sides)
      : chosen{sides.chosen, at::ones_like(sides.chosen), at::zeros_like(sides.chosen)},
        rejected{sides.rejected, at::zeros_like(sides.rejected), at::ones_like(sides.rejected)},
        chosen_mean(chosen / sides.chosen_targets),
        rejected_mean(rejected / sides.rejected_targets) {}

  Value chosen, rejected, chosen_mean, rejected_mean;
};

Value dpo_loss(DpoLoss loss, const ObjectiveOptions& options, const Sides& sides) {
  const auto beta = options.beta;
  const auto chosen = sides.chosen * beta, rejected = sides.rejected * beta, margin = chosen - rejected;
  const auto mean_margin = sides.chosen_mean - sides.rejected_mean;
  switch (loss) {
    case DpoLoss::sigmoid:
      return -log_sigmoid(margin);
    case DpoLoss::hinge:
      return relu(-margin + 1);
    case DpoLoss::ipo: {
      const auto off = mean_margin + -1 / (2 * beta);
      return off * off;
    }
    case DpoLoss::exo_pair: {
      const double epsilon = options.label_smoothing > 0 ? options.label_smoothing : 1e-3;
      return sigmoid(margin) * (log_sigmoid(margin) + -std::log1p(-epsilon)) +
             sigmoid(-margin) * (log_sigmoid(-margin) + -std::log(epsilon));
    }
    case DpoLoss::nca_pair:
      return -log_sigmoid(chosen) - log_sigmoid(-chosen) * 0.5 - log_sigmoid(-rejected) * 0.5;
    case DpoLoss::robust: {
      const double epsilon = options.label_smoothing;
      return (log_sigmoid(margin) * (epsilon - 1) + log_sigmoid(-margin) * epsilon) * (1 / (1 - 2 * epsilon));
    }
    case DpoLoss::sigmoid_norm:
      return -log_sigmoid(mean_margin * beta);
    case DpoLoss::apo_zero:
      return sigmoid(rejected) - sigmoid(chosen) + 1;
    case DpoLoss::apo_down:
      return sigmoid(chosen) - sigmoid(margin) + 1;
    case DpoLoss::sppo_hard: {
      const auto chosen_off = sides.chosen + -0.5 / beta, rejected_off = sides.rejected + 0.5 / beta;
      return chosen_off * chosen_off + rejected_off * rejected_off;
    }
    case DpoLoss::bco_pair:
      return -log_sigmoid(chosen) - log_sigmoid(-rejected);
  }
  throw std::logic_error("a loss without a formula");
}

}  // namespace

PairValue pair_losses(const ObjectiveOptions& options, const PairSides& sides) {
  const Sides values(sides);
  switch (options.kind) {
    case ObjectiveKind::dpo: {
      Value sum;
      for (const auto& [loss, weight] : options.dpo_losses) {
        const auto part = dpo_loss(loss, options, values) * weight;
        sum = sum.value.defined() ? sum + part : part;
      }
      return sum;
    }
    case ObjectiveKind::cpo:
      return dpo_loss(DpoLoss::sigmoid, options, values);
    case ObjectiveKind::simpo:
      return -log_sigmoid((values.chosen_mean - values.rejected_mean) * options.beta + -options.simpo_gamma);
    case ObjectiveKind::orpo: {
      const auto odds = [](const Value& mean) { return mean - log_one_less_exp(mean); };
      return log_sigmoid(odds(values.chosen_mean) - odds(values.rejected_mean)) * -options.beta;
    }
    case ObjectiveKind::next_token:
      break;
  }
  throw std::logic_error("an objective without pairs");
}

}  // namespace fsdp
