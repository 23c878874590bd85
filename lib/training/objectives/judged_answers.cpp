#include "lib/training/objectives/judged_answers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include <stdexcept>
#include <utility>

#include "lib/training/objectives/preferences.hpp"

namespace fsdp {
JudgedAnswers::JudgedAnswers(ObjectiveOptions options) : options_(std::move(options)) {}

std::vector<std::string> JudgedAnswers::sums() const {
  return {kChosenReward, kRejectedReward, kRewardMargin, kChosenLogps, kRejectedLogps, kDivergence, kEntropy};
}

const char* JudgedAnswers::entropy_sum() const { return kEntropy; }

StepCounts JudgedAnswers::weigh(MicroBatch& batch) const {
  if (!batch.desirable_S.defined()) throw std::logic_error("answers that are not judged");
  return {static_cast<double>(batch.desirable_S.numel()), batch.desirable_S.sum().item<double>()};
}

at::Tensor JudgedAnswers::join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const {
  if (!batch.reference_S.defined()) throw std::logic_error("no reference of judged answers");
  const auto wanted_S = batch.desirable_S, unwanted_S = 1 - wanted_S, sign_S = wanted_S - unwanted_S;
  const auto weight_S = wanted_S * options_.desirable_weight + unwanted_S * options_.undesirable_weight;
  const auto logps_S = nats_S.neg(), ratio_S = logps_S - batch.reference_S;
  const double divergence = needs_divergence() ? batch.of_step.divergence : 0;
  const auto value_S = at::sigmoid(sign_S * (ratio_S - divergence) * options_.beta);
  sums.add_loss((weight_S * (1 - value_S)).sum(), static_cast<double>(nats_S.numel()));

  // A step divides sums by the number of all answers. The figures of a kind that it has none of are 0 times infinity,
  // which is no number.
  const auto& counts = batch.of_step;
  const auto of_wanted = [&](const at::Tensor& x_S) { return (x_S * wanted_S).sum() * (counts.count / counts.tokens); };
  const auto of_unwanted = [&](const at::Tensor& x_S) {
    return (x_S * unwanted_S).sum() * (counts.count / (counts.count - counts.tokens));
  };
  const auto reward_S = ratio_S * options_.beta;
  sums.add(kChosenReward, of_wanted(reward_S));
  sums.add(kRejectedReward, of_unwanted(reward_S));
  sums.add(kRewardMargin, of_wanted(reward_S) - of_unwanted(reward_S));
  sums.add(kChosenLogps, of_wanted(logps_S));
  sums.add(kRejectedLogps, of_unwanted(logps_S));
  sums.add(kDivergence, divergence * static_cast<double>(nats_S.numel()));
  return weight_S * value_S * (1 - value_S) * sign_S * options_.beta;
}

}  // namespace fsdp
