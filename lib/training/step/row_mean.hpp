#pragma once
// The mean over rows of each row's mean loss.
#include "lib/training/step/objective.hpp"

namespace fsdp {

/// Each sequence weighs the same, however many targets it has: a target weighs one over those of its sequence. The
/// count is the number of sequences with targets.
class RowMean final : public Objective {
 public:
  bool has_weights() const override { return true; }
  double weigh(MicroBatch& batch) const override;
};

}  // namespace fsdp
