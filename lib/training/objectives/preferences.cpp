#include "lib/training/objectives/preferences.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "lib/compute/tensor/sequences.hpp"
#include "lib/reports/runs/step_report.hpp"
#include "lib/training/objectives/pair_losses.hpp"

namespace fsdp {
at::Tensor side_of(const at::Tensor& values_S, std::int64_t side) { return values_S.view({-1, 2}).select(1, side); }

void add_rewards(StepSums& sums, const at::Tensor& chosen, const at::Tensor& rejected) {
  sums.add(kChosenReward, chosen.sum());
  sums.add(kRejectedReward, rejected.sum());
  sums.add(kRewardMargin, (chosen - rejected).sum());
  sums.add(kRewardAccuracy, chosen.gt(rejected).sum(at::kDouble));
}

PreferenceObjective::PreferenceObjective(ObjectiveOptions options) : options_(std::move(options)) {
  const bool has_sft = options_.kind == ObjectiveKind::orpo || options_.kind == ObjectiveKind::cpo;
  if (options_.sft_weight < 0) options_.sft_weight = has_sft ? 1 : 0;
}

std::vector<std::string> PreferenceObjective::sums() const {
  return {kChosenReward, kRejectedReward, kRewardMargin, kRewardAccuracy, kChosenLogps, kRejectedLogps, kEntropy};
}

const char* PreferenceObjective::entropy_sum() const { return kEntropy; }

StepCounts PreferenceObjective::weigh(MicroBatch& batch) const {
  const auto sequences = sequences_of(batch);
  if (sequences.size() % 2 != 0) throw std::logic_error("preferences of an odd number of sequences");
  batch.targets_S = at::empty({std::ssize(sequences)}, at::kDouble);
  auto* targets = batch.targets_S.data_ptr<double>();
  const auto* ids = batch.targets_N.const_data_ptr<std::int32_t>();
  StepCounts counts{static_cast<double>(sequences.size() / 2), 0};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto* first = ids + sequences[i].first;
    targets[i] =
        static_cast<double>(std::count_if(first, first + sequences[i].length, [](std::int32_t id) { return id >= 0; }));
    if (i % 2 == 0) counts.tokens += targets[i];
  }
  return counts;
}

at::Tensor PreferenceObjective::join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const {
  const auto logps_S = nats_S.neg();
  if (options_.has_reference() && !batch.reference_S.defined()) throw std::logic_error("no reference of preferences");
  const auto scores_S = options_.has_reference() ? logps_S - batch.reference_S : logps_S;
  const auto targets_S = batch.targets_S.clamp_min(1);  // a side that was cut has none
  const PairSides sides{side_of(scores_S, 0), side_of(scores_S, 1), side_of(targets_S, 0), side_of(targets_S, 1)};
  const auto losses = pair_losses(options_, sides);
  sums.add_loss(losses.value.sum(), static_cast<double>(losses.value.numel()));

  const bool by_means = options_.kind == ObjectiveKind::orpo || options_.kind == ObjectiveKind::simpo;
  const auto rewards_S = (by_means ? scores_S / targets_S : scores_S) * options_.beta;
  add_rewards(sums, side_of(rewards_S, 0), side_of(rewards_S, 1));
  sums.add(kChosenLogps, side_of(logps_S, 0).sum());
  sums.add(kRejectedLogps, side_of(logps_S, 1).sum());

  auto by_chosen_nats = losses.by_chosen.neg();
  if (options_.sft_weight > 0 && batch.of_step.tokens > 0) {
    const double factor = options_.sft_weight * batch.of_step.count / batch.of_step.tokens;
    sums.add_loss(side_of(nats_S, 0).sum() * factor, 0);
    by_chosen_nats = by_chosen_nats + factor;
  }
  return at::stack({by_chosen_nats, losses.by_rejected.neg()}, 1).reshape({-1});
}

}  // namespace fsdp
