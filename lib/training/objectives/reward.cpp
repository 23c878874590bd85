#include "lib/training/objectives/reward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>

#include <stdexcept>

#include "lib/compute/tensor/sequences.hpp"
#include "lib/reports/runs/step_report.hpp"
#include "lib/training/objectives/preferences.hpp"

namespace fsdp {

std::vector<std::string> RewardObjective::sums() const {
  return {kChosenReward, kRejectedReward, kRewardMargin, kRewardAccuracy};
}

StepCounts RewardObjective::weigh(MicroBatch& batch) const {
  const auto sequences = sequences_of(batch).size();
  if (sequences % 2 != 0) throw std::logic_error("preferences of an odd number of sequences");
  const auto pairs = static_cast<double>(sequences / 2);
  return {pairs, pairs};
}

at::Tensor RewardObjective::join(const MicroBatch&, const at::Tensor& nats_S, StepSums& sums) const {
  const auto chosen = side_of(nats_S, 0).neg(), rejected = side_of(nats_S, 1).neg();
  const auto margin = chosen - rejected, both = chosen + rejected;
  auto losses = at::log_sigmoid(margin).neg();
  if (center_rewards_ > 0) losses = losses + both.square() * center_rewards_;
  sums.add_loss(losses.sum(), static_cast<double>(losses.numel()));
  add_rewards(sums, chosen, rejected);
  // By the rewards, which are the negatives of nats_S: -sigmoid(-margin) and its negative, and 2 c (chosen + rejected).
  const auto by_margin = at::sigmoid(margin.neg()), by_both = both * (2 * center_rewards_);
  return at::stack({by_margin - by_both, by_margin.neg() - by_both}, 1).reshape({-1});
}

}  // namespace fsdp
