#include "lib/training/record/validation_state.hpp"

#include <cmath>

namespace fsdp {

ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingValue& found) {
  ValidationVerdict verdict;
  if (!rules.decide()) return verdict;
  verdict.began_anew =
      state.step >= 0 && (state.metric != found.metric || state.set != found.set || state.count != found.count);
  if (verdict.began_anew) state = {};
  const bool again = state.step == found.step;
  state.step = found.step;
  state.metric = found.metric;
  state.set = found.set;
  state.count = found.count;
  const bool finite = std::isfinite(found.value);
  // By how much the value is better than another one.
  const auto gain = [&](double than) { return rules.higher_is_better ? found.value - than : than - found.value; };
  if (rules.keeps_best && found.may_be_best && finite && (state.best_step < 0 || gain(state.best_value) > 0)) {
    state.best_value = found.value;
    state.best_step = found.step;
    verdict.is_best = true;
  }
  if (rules.patience <= 0) {
    // Patience that is switched on later counts from then on.
    state.patience_value = ValidationState().patience_value;
    state.without_improvement = 0;
  } else if (finite && (std::isnan(state.patience_value) || gain(state.patience_value) > rules.min_delta)) {
    state.patience_value = found.value;
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
