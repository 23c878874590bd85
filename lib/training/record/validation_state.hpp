#pragma once
// Consequences of a validation for the run: whether it is the best so far, and whether the run continues.
#include <cstdint>
#include <string>

#include "lib/training/record/run_manifest.hpp"

namespace fsdp {

/// The decisions that validations make.
struct ValidationRules {
  bool keeps_best = false;        ///< the best checkpoint
  std::int64_t patience = 0;      ///< validations in a row without improvement that end the run; 0: none do
  double min_delta = 0;           ///< by how much a value must be better to be an improvement, for `patience`
  bool higher_is_better = false;  ///< a share of what was right, not a loss

  bool decide() const { return keeps_best || patience > 0; }
};

/// A value of the deciding metric; see ValidationState.
struct DecidingValue {
  std::int64_t step = 0;
  std::string set;
  std::int64_t count = 0;
  double value = 0;
  bool may_be_best = true;  ///< false: the model is not to be saved as it is
  std::string metric = ValidationState().metric;
};

struct ValidationVerdict {
  bool is_best = false;     ///< better than all before: to be kept
  bool began_anew = false;  ///< something else has decided until now: what that came to is forgotten
};

/// Takes a validation into account. A value that is not finite is never the best, and no improvement; one of a step
/// that was validated before (a restart does that) is not counted once more.
ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingValue& found);

/// As many validations as it takes were no better.
bool out_of_patience(const ValidationState& state, const ValidationRules& rules);

}  // namespace fsdp
