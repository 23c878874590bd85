#pragma once
// Losses of preferences, as functions of the log-probabilities of both sides. Shapes: P pairs.
#include <ATen/core/Tensor.h>

#include "lib/training/objectives/objective_options.hpp"

namespace fsdp {

/// A value of each pair with its derivatives by the log-probabilities of the chosen and the rejected side: float64 [P].
struct PairValue {
  at::Tensor value, by_chosen, by_rejected;
};

/// Both sides of pairs, float64 [P].
struct PairSides {
  at::Tensor chosen, rejected;                  ///< log-probabilities; with a reference less those by the reference
  at::Tensor chosen_targets, rejected_targets;  ///< their numbers, at least 1
};

/// The loss of each pair without the part of the chosen tokens (ObjectiveOptions::sft_weight). Formulas are those of
/// TRL 1.16 (dpo_trainer.py, and its ORPO and CPO trainers), derivatives follow by the chain rule.
PairValue pair_losses(const ObjectiveOptions& options, const PairSides& sides);

}  // namespace fsdp
