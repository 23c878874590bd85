#pragma once
// The objective of judged answers: KTO, and APO-zero without pairs.
#include <string>
#include <vector>

#include "lib/training/objectives/objective.hpp"
#include "lib/training/objectives/objective_options.hpp"

namespace fsdp {

/// With r the log-probability of an answer less that by the reference, k the divergence of the step
/// (StepCounts::divergence) and w its weight, the loss of an answer is w (1 - sigmoid(beta (r - k))) where it is
/// wanted, and w (1 - sigmoid(beta (k - r))) where it is not; of apo_zero_unpaired k is 0. The loss of a step is their
/// mean. Source: KTOTrainer of TRL 1.16, which takes k by micro-batch. The count is the number of answers, the second
/// one that of those that are wanted. Rewards are beta r; the figures of each kind of answers are means over that kind.
class JudgedAnswers final : public Objective {
 public:
  explicit JudgedAnswers(ObjectiveOptions options);

  std::vector<std::string> sums() const override;
  const char* entropy_sum() const override;
  bool has_weights() const override { return true; }
  bool joins_sequences() const override { return true; }
  bool needs_counts() const override { return true; }
  bool needs_divergence() const override { return options_.kto_loss == KtoLoss::kto; }
  StepCounts weigh(MicroBatch& batch) const override;
  at::Tensor join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const override;

 private:
  ObjectiveOptions options_;
};

}  // namespace fsdp
