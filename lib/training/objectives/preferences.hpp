#pragma once
// Objectives of preferences: DPO and others with a reference, ORPO, SimPO, CPO.
#include <string>
#include <vector>

#include "lib/training/objectives/objective.hpp"
#include "lib/training/objectives/objective_options.hpp"

namespace fsdp {

// Sums of preferences beside the loss; accuracy is kRewardAccuracy.
inline constexpr const char *kChosenReward = "reward_chosen", *kRejectedReward = "reward_rejected",
                            *kRewardMargin = "reward_margin", *kChosenLogps = "logps_chosen",
                            *kRejectedLogps = "logps_rejected", *kEntropy = "entropy", *kDivergence = "kl";

/// Adds them. \param chosen, rejected  rewards of both sides of each pair, float64
void add_rewards(StepSums& sums, const at::Tensor& chosen, const at::Tensor& rejected);
/// One side of all pairs of sequences. \param side  0: the chosen, 1: the rejected
at::Tensor side_of(const at::Tensor& values_S, std::int64_t side);

/// The loss is the mean of pair_losses() over all pairs of the step, and sft_weight times the mean loss of all chosen
/// targets of the step. The count is the number of pairs. Rewards are beta times the log-probability, of orpo and simpo
/// its mean over the targets, less the reference's where there is one.
class PreferenceObjective final : public Objective {
 public:
  explicit PreferenceObjective(ObjectiveOptions options);

  std::vector<std::string> sums() const override;
  const char* entropy_sum() const override;
  bool has_weights() const override { return true; }
  bool joins_sequences() const override { return true; }
  bool needs_counts() const override { return options_.sft_weight > 0; }
  StepCounts weigh(MicroBatch& batch) const override;
  at::Tensor join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const override;

 private:
  ObjectiveOptions options_;
};

}  // namespace fsdp
