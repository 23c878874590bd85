#include "lib/train/validation_state.hpp"

#include <cmath>

namespace fsdp {

ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingLoss& found) {
  ValidationVerdict verdict;
  if (!rules.decide()) return verdict;
  verdict.began_anew = state.step >= 0 && (state.set != found.set || state.tokens != found.tokens);
  if (verdict.began_anew) state = {};
  const bool again = state.step == found.step;
  state.step = found.step;
  state.set = found.set;
  state.tokens = found.tokens;
  const bool finite = std::isfinite(found.loss);
  if (rules.keeps_best && found.may_be_best && finite && (state.best_step < 0 || found.loss < state.best_loss)) {
    state.best_loss = found.loss;
    state.best_step = found.step;
    verdict.is_best = true;
  }
  if (rules.patience <= 0) {
    // Whoever asks for it later does so from there on.
    state.lowest_loss = ValidationState().lowest_loss;
    state.without_improvement = 0;
  } else if (finite && (std::isnan(state.lowest_loss) || found.loss < state.lowest_loss - rules.min_delta)) {
    state.lowest_loss = found.loss;
    state.without_improvement = 0;
  } else if (!again) {
    ++state.without_improvement;
  }
  return verdict;
}

bool out_of_patience(const ValidationState& state, const ValidationRules& rules) {
  return rules.patience > 0 && state.without_improvement >= rules.patience;
}

}  // namespace fsdp
