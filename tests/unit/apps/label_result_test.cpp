#include "apps/eval/label_result.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

using fsdp::LabelScores;

namespace {

/// \param probabilities  [texts, labels]
LabelScores scores_of(std::int64_t labels, const std::vector<double>& probabilities, std::vector<double> targets) {
  LabelScores scores;
  scores.labels = labels;
  for (const double probability : probabilities) scores.log_probs.push_back(std::log(probability));
  scores.targets = std::move(targets);
  return scores;
}

}  // namespace

TEST_SUITE("apps/label_result") {
  // Counted by hand.
  TEST_CASE("figures of three labels") {
    const auto result = fsdp::label_result(scores_of(3,
                                                     {0.7, 0.2, 0.1,  //
                                                      0.1, 0.6, 0.3,  //
                                                      0.3, 0.4, 0.3,  //
                                                      0.2, 0.1, 0.7,  //
                                                      0.5, 0.2, 0.3},
                                                     {0, 1, 0, 2, 2}),
                                           {"a", "b", "c"});
    CHECK(result.accuracy.value == doctest::Approx(0.6));
    CHECK(result.right == "11010");
    CHECK(result.labels[0].precision() == doctest::Approx(0.5));
    CHECK(result.labels[0].recall() == doctest::Approx(0.5));
    CHECK(result.labels[1].precision() == doctest::Approx(0.5));
    CHECK(result.labels[1].recall() == doctest::Approx(1));
    CHECK(result.labels[2].precision() == doctest::Approx(1));
    CHECK(result.labels[2].recall() == doctest::Approx(0.5));
    CHECK(result.macro_f1 == doctest::Approx((0.5 + 2.0 / 3 + 2.0 / 3) / 3));
    CHECK(result.labels[0].auc == doctest::Approx(5.0 / 6));
    CHECK(result.labels[1].auc == doctest::Approx(1));
    CHECK(result.labels[2].auc == doctest::Approx(5.0 / 6));  // two ties of 0.3 count by half
    CHECK(result.loss.value ==
          doctest::Approx(-(std::log(0.7) + std::log(0.6) + std::log(0.3) + std::log(0.7) + std::log(0.3)) / 5));
    CHECK(result.confusion == std::vector<std::int64_t>{1, 1, 0, 0, 1, 0, 1, 0, 1});
    // Bins of 1/15: 0.7 twice in one, right twice; 0.6 right; 0.5 and 0.4 wrong.
    CHECK(result.calibration_error == doctest::Approx((2 * 0.3 + 0.4 + 0.5 + 0.4) / 5));
    nlohmann::json report;
    fsdp::add_to_json(result, report);
    CHECK(report["confusion"][0] == nlohmann::json{1, 1, 0});
    CHECK(fsdp::to_text(result).size() == 6);
  }

  TEST_CASE("two labels, one of which no text has, and a label that is never given") {
    const auto result = fsdp::label_result(scores_of(2, {0.9, 0.1, 0.8, 0.2}, {0, 0}), {"no", "yes"});
    CHECK(result.accuracy.value == 1);
    CHECK(std::isnan(result.auc));
    CHECK(result.macro_f1 == 1);
    CHECK(result.labels[1].f1() == 0);
    nlohmann::json report;
    fsdp::add_to_json(result, report);
    CHECK(report["label_auc"].is_null());
    const auto other = fsdp::label_result(scores_of(2, {0.9, 0.1, 0.8, 0.2, 0.3, 0.7}, {0, 1, 1}), {"no", "yes"});
    CHECK(other.auc == doctest::Approx(1));
    CHECK(other.labels[1].recall() == doctest::Approx(0.5));
  }

  TEST_CASE("probabilities that are no numbers lead to figures, not to a crash") {
    const auto result = fsdp::label_result(scores_of(2, {std::nan(""), std::nan(""), 0.8, 0.2}, {1, 0}), {"a", "b"});
    CHECK(std::isnan(result.loss.value));
    CHECK(result.calibration_bins.size() == 15);
  }
}
