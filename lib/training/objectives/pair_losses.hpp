#pragma once
// Losses of preferences, as functions of the log-probabilities of both sides. Shapes: P pairs.
#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

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

/// The parts that losses are made of.
struct DpoTerms {
  PairValue chosen_logp, rejected_logp;  ///< PairSides::chosen and rejected
  PairValue chosen_mean, rejected_mean;  ///< the same as means over targets
  PairValue chosen, rejected, margin;    ///< the first two times beta, and their difference
  PairValue mean_margin;                 ///< beta times the difference of the means
};

/// A loss with a reference.
struct DpoLoss {
  std::string_view text;  ///< TRL's name
  PairValue (*formula)(const ObjectiveOptions& options, const DpoTerms& terms);
  bool takes_smoothing = false;  ///< ObjectiveOptions::label_smoothing changes it
  bool is_listed = true;
};
std::span<const DpoLoss> dpo_losses();
/// \return null where no loss has the name
const DpoLoss* find_dpo_loss(std::string_view name);

/// The loss of each pair without the part of the chosen tokens (ObjectiveOptions::sft_weight). Formulas are those of
/// TRL 1.16 (dpo_trainer.py, and its ORPO and CPO trainers), derivatives follow by the chain rule.
PairValue pair_losses(const ObjectiveOptions& options, const PairSides& sides);

}  // namespace fsdp
