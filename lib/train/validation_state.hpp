#pragma once
// What the loss of a validation means for the run: the best so far, and whether the run goes on.
#include <cstdint>
#include <string>

#include "lib/config/run_manifest.hpp"

namespace fsdp {

/// What is decided by validations.
struct ValidationRules {
  bool keeps_best = false;    ///< the checkpoint of the lowest loss
  std::int64_t patience = 0;  ///< validations in a row without improvement that end the run; 0: none do
  double min_delta = 0;       ///< by how much a loss must be lower to be an improvement, for `patience`

  bool decide() const { return keeps_best || patience > 0; }
};

/// The loss of the data that decide.
struct DecidingLoss {
  std::int64_t step = 0;
  std::string set;
  std::int64_t tokens = 0;
  double loss = 0;
  bool may_be_best = true;  ///< false: the model is not to be saved as it is
};

struct ValidationVerdict {
  bool is_best = false;     ///< lower than all before: to be kept
  bool began_anew = false;  ///< other data than before decided until now: what they came to is forgotten
};

/// Takes a validation into account. A loss that is not finite is never the best, and no improvement; one of a step that
/// was validated before (a restart does that) is not counted once more.
ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingLoss& found);

/// As many validations as it takes were no better.
bool out_of_patience(const ValidationState& state, const ValidationRules& rules);

}  // namespace fsdp
