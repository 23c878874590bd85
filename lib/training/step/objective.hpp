#pragma once
// Objectives: functions of rows that training minimizes.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/compute/tensor/step_sums.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/step/sequence_losses.hpp"

namespace fsdp {

/// A step minimizes a loss, divided by a count, both summed over all rows of the step on all ranks. The count is known
/// before the first forward, since it scales every gradient.
///
/// A row is a sample of the data loader. It is one sequence, or several documents that are packed into it: an objective
/// that compares sequences, such as an answer that is preferred with one that is rejected, finds them in one row.
///
/// This class is the next token's objective: the loss is the sum of all targets' losses, the count is their number.
class Objective {
 public:
  virtual ~Objective() = default;
  /// Names of the sums that join() adds to beside the loss; a step reports each of them divided by the count.
  virtual std::vector<std::string> sums() const { return {}; }

  /// True if targets weigh other than 1, so that weigh() is called.
  virtual bool has_weights() const { return false; }
  /// Sets the weights of a micro-batch's targets (MicroBatch::weights_N) before it goes to the device. The loss becomes
  /// the sum of weighted losses. \return the micro-batch's part of the count: the sum of the weights of its targets,
  /// unless join() counts something else
  virtual double weigh(MicroBatch& batch) const;

  /// True if the loss is a function of sequences' losses other than their sum, so that join() is called. Each
  /// micro-batch then runs forward once more, ahead of its forward and backward. \pre has_weights()
  virtual bool joins_sequences() const { return false; }
  /// Computes the loss of a micro-batch from those of its sequences. Adds it to sums.nats, and the micro-batch's part
  /// of the count to sums.weight, which is what weigh() returned. \return for each sequence, the derivative of the loss
  /// by its `nats`
  virtual std::vector<double> join(const MicroBatch& batch, std::span<const SequenceLoss> sequences,
                                   StepSums& sums) const;
};

/// The factor of a sum over so much weight in its mean.
inline double share_of(double weight) { return weight > 0 ? 1.0 / weight : 0.0; }

/// The sums of a step, all 0: of the loss, of the model's layers, then of the objective.
StepSums sums_of(const Objective& objective, const Engine& engine);
/// Sets the weights of a micro-batch that is on the host. \return its part of the count
double weigh(const Objective& objective, const ModelRuntime& runtime, MicroBatch& batch);
/// Forward and backward of grad_scale times the loss of a weighed micro-batch. Collective.
/// \param batch  on the device; its weights change
StepSums forward_backward(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch,
                          MicroBatchPosition place, double grad_scale);
/// Forward only. Collective.
StepSums evaluate(const Objective& objective, ModelRuntime& runtime, const MicroBatch& batch);

}  // namespace fsdp
