#include "lib/training/objectives/pair_losses.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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

DpoTerms terms_of(const PairSides& sides, double beta) {
  DpoTerms t;
  t.chosen_logp = {sides.chosen, at::ones_like(sides.chosen), at::zeros_like(sides.chosen)};
  t.rejected_logp = {sides.rejected, at::zeros_like(sides.rejected), at::ones_like(sides.rejected)};
  t.chosen_mean = t.chosen_logp / sides.chosen_targets;
  t.rejected_mean = t.rejected_logp / sides.rejected_targets;
  t.chosen = t.chosen_logp * beta;
  t.rejected = t.rejected_logp * beta;
  t.margin = t.chosen - t.rejected;
  t.mean_margin = (t.chosen_mean - t.rejected_mean) * beta;
  return t;
}

using Options = const ObjectiveOptions&;
using Terms = const DpoTerms&;

Value exo_pair(Options options, Terms t) {
  const double epsilon = options.label_smoothing > 0 ? options.label_smoothing : 1e-3;
  return sigmoid(t.margin) * (log_sigmoid(t.margin) + -std::log1p(-epsilon)) +
         sigmoid(-t.margin) * (log_sigmoid(-t.margin) + -std::log(epsilon));
}
Value robust(Options options, Terms t) {
  const double epsilon = options.label_smoothing;
  return (log_sigmoid(t.margin) * (epsilon - 1) + log_sigmoid(-t.margin) * epsilon) * (1 / (1 - 2 * epsilon));
}
Value ipo(Options options, Terms t) {
  const auto off = t.chosen_mean - t.rejected_mean + -1 / (2 * options.beta);
  return off * off;
}
/// Lu et al., arXiv:2406.08414, equation 5. TRL's discopop_tau is 0.05.
Value discopop(Options, Terms t) {
  const auto share = t.margin * (1 / 0.05);
  const auto exponent = log_sigmoid(share) - t.margin;  // of the product, whose factors alone are infinite and 0
  const auto power = at::exp(exponent.value);
  return -log_sigmoid(t.margin) * sigmoid(-share) + of(exponent, power, power);
}
Value sppo_hard(Options options, Terms t) {
  const auto chosen_off = t.chosen_logp + -0.5 / options.beta, rejected_off = t.rejected_logp + 0.5 / options.beta;
  return chosen_off * chosen_off + rejected_off * rejected_off;
}

const DpoLoss kDpoLosses[] = {
    // Rafailov et al., arXiv:2305.18290
    {.text = "sigmoid", .formula = [](Options, Terms t) { return -log_sigmoid(t.margin); }},
    // Zhao et al., arXiv:2305.10425
    {.text = "hinge", .formula = [](Options, Terms t) { return relu(-t.margin + 1); }},
    // Azar et al., arXiv:2310.12036, with means over tokens
    {.text = "ipo", .formula = ipo},
    // Ji et al., arXiv:2402.00856
    {.text = "exo_pair", .formula = exo_pair, .takes_smoothing = true},
    // Chen et al., arXiv:2402.05369
    {.text = "nca_pair",
     .formula =
         [](Options, Terms t) {
           return -log_sigmoid(t.chosen) - log_sigmoid(-t.chosen) * 0.5 - log_sigmoid(-t.rejected) * 0.5;
         }},
    // Chowdhury et al., arXiv:2403.00409
    {.text = "robust", .formula = robust, .takes_smoothing = true},
    // with means over tokens
    {.text = "sigmoid_norm", .formula = [](Options, Terms t) { return -log_sigmoid(t.mean_margin); }},
    // D'Oosterlinck et al., arXiv:2408.06266, here and below
    {.text = "apo_zero", .formula = [](Options, Terms t) { return sigmoid(t.rejected) - sigmoid(t.chosen) + 1; }},
    {.text = "apo_down", .formula = [](Options, Terms t) { return sigmoid(t.chosen) - sigmoid(t.margin) + 1; }},
    // Wu et al., arXiv:2405.00675, with a probability of 1 that the chosen side wins
    {.text = "sppo_hard", .formula = sppo_hard},
    {.text = "discopop", .formula = discopop},
    // Jung et al., arXiv:2404.04656, without the shift by running means
    {.text = "bco_pair",
     .formula = [](Options, Terms t) { return -log_sigmoid(t.chosen) - log_sigmoid(-t.rejected); }}};

}  // namespace

std::span<const DpoLoss> dpo_losses() { return kDpoLosses; }

const DpoLoss* find_dpo_loss(std::string_view name) {
  const auto found = std::ranges::find(kDpoLosses, name, &DpoLoss::text);
  return found == std::end(kDpoLosses) ? nullptr : found;
}

PairValue pair_losses(const ObjectiveOptions& options, const PairSides& sides) {
  const auto terms = terms_of(sides, options.beta);
  switch (options.kind) {
    case ObjectiveKind::dpo: {
      if (options.dpo_losses.empty()) return kDpoLosses[0].formula(options, terms);
      Value sum;
      for (const auto& [loss, weight] : options.dpo_losses) {
        const auto part = loss->formula(options, terms) * weight;
        sum = sum.value.defined() ? sum + part : part;
      }
      return sum;
    }
    case ObjectiveKind::cpo:
      return kDpoLosses[0].formula(options, terms);
    case ObjectiveKind::simpo:
      return -log_sigmoid(terms.mean_margin + -options.simpo_gamma);
    case ObjectiveKind::orpo: {
      const auto odds = [](const Value& mean) { return mean - log_one_less_exp(mean); };
      return log_sigmoid(odds(terms.chosen_mean) - odds(terms.rejected_mean)) * -options.beta;
    }
    case ObjectiveKind::next_token:
    case ObjectiveKind::kto:
      break;
  }
  throw std::logic_error("an objective without pairs");
}

}  // namespace fsdp
