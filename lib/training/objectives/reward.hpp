#pragma once
// The objective of reward models.
#include <string>
#include <vector>

#include "lib/training/objectives/objective.hpp"

namespace fsdp {

/// The loss is the mean over all pairs of the step of -log sigmoid(chosen - rejected), the rewards of both sides
/// (Bradley and Terry), and center_rewards times (chosen + rejected)^2. Source: RewardTrainer of TRL 1.16. The count is
/// the number of pairs. \pre the model has one score, of which the loss of a sequence is the negative
class RewardObjective final : public Objective {
 public:
  explicit RewardObjective(double center_rewards) : center_rewards_(center_rewards) {}

  std::vector<std::string> sums() const override;
  bool has_weights() const override { return true; }
  bool joins_sequences() const override { return true; }
  StepCounts weigh(MicroBatch& batch) const override;
  at::Tensor join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const override;

 private:
  double center_rewards_;
};

}  // namespace fsdp
