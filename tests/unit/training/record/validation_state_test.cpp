#include "lib/training/record/run_manifest.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace fsdp;

TEST_SUITE("train/validation_state") {
  TEST_CASE("judge_validation: the lowest loss is the best, a NaN never") {
    ValidationState state;
    const ValidationRules rules{.keeps_best = true};
    CHECK_FALSE(judge_validation(state, rules, {1, "", 10, std::nan("")}).is_best);
    CHECK(state.best_step == -1);
    CHECK(judge_validation(state, rules, {2, "", 10, 3.0}).is_best);
    CHECK_FALSE(judge_validation(state, rules, {3, "", 10, 3.0}).is_best);
    CHECK_FALSE(judge_validation(state, rules, {4, "", 10, std::nan("")}).is_best);
    CHECK_FALSE(judge_validation(state, rules, {5, "", 10, -INFINITY}).is_best);
    CHECK_FALSE(judge_validation(state, rules, {6, "", 10, 2.0, /*may_be_best=*/false}).is_best);
    CHECK(judge_validation(state, rules, {7, "", 10, 2.5}).is_best);
    CHECK(state.best_step == 7);
    CHECK(state.best_value == 2.5);
  }

  TEST_CASE("judge_validation: patience counts what is not lower by more than min_delta, and each step once") {
    ValidationState state;
    const ValidationRules rules{.keeps_best = true, .patience = 2, .min_delta = 0.5};
    judge_validation(state, rules, {1, "", 10, 3.0});
    CHECK(judge_validation(state, rules, {2, "", 10, 2.75}).is_best);  // the best, but no improvement
    CHECK(state.without_improvement == 1);
    judge_validation(state, rules, {2, "", 10, 2.75});  // a restart does that
    CHECK(state.without_improvement == 1);
    judge_validation(state, rules, {3, "", 10, 2.25});
    CHECK(state.without_improvement == 0);
    judge_validation(state, rules, {4, "", 10, 1.75});  // exactly as much is not more
    judge_validation(state, rules, {5, "", 10, std::nan("")});
    CHECK(out_of_patience(state, rules));
    CHECK_FALSE(out_of_patience(state, {.patience = 3}));
    CHECK_FALSE(out_of_patience(state, {.keeps_best = true}));
    // Without patience nothing is counted on.
    judge_validation(state, {.keeps_best = true}, {6, "", 10, 9.0});
    CHECK(state.without_improvement == 0);
  }

  TEST_CASE("judge_validation: a share is the better the higher it is") {
    ValidationState state;
    const ValidationRules rules{.keeps_best = true, .patience = 2, .min_delta = 0.25, .higher_is_better = true};
    CHECK(judge_validation(state, rules, {1, "", 10, 0.25, true, "chess_legal"}).is_best);
    CHECK_FALSE(judge_validation(state, rules, {2, "", 10, 0.125, true, "chess_legal"}).is_best);
    CHECK(judge_validation(state, rules, {3, "", 10, 0.375, true, "chess_legal"}).is_best);
    CHECK(out_of_patience(state, rules));
    CHECK(judge_validation(state, rules, {4, "", 10, 0.75, true, "chess_legal"}).is_best);
    CHECK(state.without_improvement == 0);
    CHECK(state.metric == "chess_legal");
    CHECK_FALSE(judge_validation(state, rules, {5, "", 10, std::nan(""), true, "chess_legal"}).is_best);
  }

  TEST_CASE("judge_validation: other data and other metrics begin anew") {
    const ValidationRules rules{.keeps_best = true, .patience = 2};
    for (const auto& other : {DecidingValue{2, "b", 10, 5.0}, DecidingValue{2, "a", 11, 5.0},
                              DecidingValue{2, "a", 10, 5.0, true, "chess_legal"}}) {
      ValidationState state;
      judge_validation(state, rules, {1, "a", 10, 3.0});
      const auto verdict = judge_validation(state, rules, other);
      CHECK(verdict.began_anew);
      CHECK(verdict.is_best);
      CHECK(state.best_value == 5.0);
      CHECK(state.without_improvement == 0);
    }
  }

  TEST_CASE("judge_validation: where nothing is decided nothing is noted") {
    ValidationState state;
    judge_validation(state, {}, {1, "", 10, 3.0});
    CHECK(state.step == -1);
  }
}
