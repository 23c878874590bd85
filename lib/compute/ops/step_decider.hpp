#pragma once
// Steps that the host does not wait for: how far gradients are scaled down, and whether there is an update at all, is
// decided where they are, for Ops::adamw().
#include <ATen/core/Tensor.h>

#include <span>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

/// What a step is decided by: sums over all ranks, float64, on the device.
struct StepSums {
  at::Tensor squares;  ///< [1]: of the gradients, which are loss_scale times too large, once for each replica
  at::Tensor loss;     ///< [2]: nats and tokens
  int replicas = 1;
  double loss_scale = 1;
  double clip_norm = 0;  ///< largest norm of the gradients; 0: any
};

/// What it came to.
struct StepOutcome {
  double norm = 0;  ///< of the gradients as they are, loss_scale times too large
  double nats = 0;
  bool skipped = false;  ///< loss or gradients are not finite: nothing was updated
};

class StepDecider {
 public:
  virtual ~StepDecider() = default;
  /// Ops::sum_squares() as float64 [1] on the device.
  virtual at::Tensor device_sum_squares(std::span<const GradPart> parts) const = 0;
  /// \return for UpdateGroup::decision
  virtual at::Tensor decide(const StepSums& sums) const = 0;
  /// Waits for it.
  virtual StepOutcome outcome_of(const at::Tensor& decision) const = 0;
};

}  // namespace fsdp
