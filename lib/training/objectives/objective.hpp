#pragma once
// Objectives: functions of rows that training minimizes.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/compute/tensor/layer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// A step minimizes a loss, divided by a count, both summed over all rows of the step on all ranks. The count is known
/// before the first forward, since it scales every gradient.
///
/// A row is a sample of the data loader. It is one sequence, or several documents that are packed into it; of pairs
/// (TokenLoader) it is two sequences, the chosen one first, or several such pairs.
///
/// This class is the next token's objective: the loss is the sum of all targets' losses, the count is their number.
class Objective : public JointLoss {
 public:
  /// \see JointLoss::sums(). A step reports each of them divided by the count, entropies by the number of targets.
  std::vector<std::string> sums() const override { return {}; }

  /// True if targets weigh other than 1, so that weigh() is called.
  virtual bool has_weights() const { return false; }
  /// Sets the weights of a micro-batch's targets (MicroBatch::weights_N) before it goes to the device, and what join()
  /// reads. The loss becomes the sum of weighted losses. \return the micro-batch's part of the counts: the sum of the
  /// weights of its targets, unless join() counts something else. The counts of the step are in MicroBatch::of_step
  virtual StepCounts weigh(MicroBatch& batch) const;

  /// True if the loss is a function of sequences' losses other than their sum, so that join() is called, between the
  /// forward of the head and its backward. \pre has_weights()
  virtual bool joins_sequences() const { return false; }
  /// True if a part of the loss has a count of its own (StepCounts::tokens), so that both counts of all rows must be
  /// known before join().
  virtual bool needs_counts() const { return false; }
  /// True if join() reads StepCounts::divergence, so that rows have mismatched ones. \pre needs_counts()
  virtual bool needs_divergence() const { return false; }
  /// \see JointLoss::join(). Adds to sums.weight what weigh() returned as the count.
  at::Tensor join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const override;
};

/// The factor of a sum over so much weight in its mean.
inline double share_of(double weight) { return weight > 0 ? 1.0 / weight : 0.0; }
/// The same of one of the sums that stand beside the loss.
double share_of(const Objective& objective, std::string_view sum, double count, double targets);

/// The sums of a step, all 0: of the loss, of the model's layers, then of the objective.
StepSums sums_of(const Objective& objective, const Engine& engine);
/// Sets the weights of a micro-batch that is on the host. \return its part of the counts
StepCounts weigh(const Objective& objective, const ModelRuntime& runtime, MicroBatch& batch);
/// Computes the losses of the targets of each sequence, float64 [S]; undefined without rows. Forward only. Collective.
/// \param batch  on the device
at::Tensor sequence_nats(ModelRuntime& runtime, MicroBatch& batch);

/// StepCounts::divergence of several micro-batches.
class Divergence {
 public:
  explicit Divergence(ModelRuntime& runtime) : runtime_(runtime) {}
  /// Forward of the mismatched sequences. Collective. \param batch  whose mismatched ones are on the device
  void add(const MicroBatch& batch);
  /// Waits for the device. Collective; the same result on every rank.
  double mean() const;

 private:
  ModelRuntime& runtime_;
  std::vector<at::Tensor> differences_;  ///< sums, on the device
  double sequences_ = 0;
};

/// Forward and backward of grad_scale times the loss of a weighed micro-batch. Collective.
/// \param batch  on the device, with the counts of its step
StepSums forward_backward(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch,
                          MicroBatchPosition place, double grad_scale);
/// Forward only. Collective.
StepSums evaluate(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch);

}  // namespace fsdp
