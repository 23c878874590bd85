#pragma once
// How well a classifier labels texts, as text, as JSON, and for comparison with another one.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/training/evaluate/statistics.hpp"
#include "lib/training/step/label_scores.hpp"

namespace fsdp {

struct LabelResult {
  struct OfLabel {
    std::string name;
    std::int64_t texts = 0, given = 0, right = 0;  ///< texts with it; those to which it was given; of them with it
    double auc = 0;  ///< probability that a text with it gets a higher probability of it than one without; NaN: none

    double precision() const;
    double recall() const;
    double f1() const;  ///< 0 where the label is never right, as in scikit-learn
  };

  Estimate accuracy;             ///< share of texts that get their label
  Estimate loss;                 ///< mean negative log-probability of the label, in nats
  double macro_f1 = 0, auc = 0;  ///< means over labels that some text has; AUC of two labels is that of the second one
  double calibration_error = 0;  ///< see calibration_bins
  std::vector<OfLabel> labels;
  std::vector<std::int64_t> confusion;  ///< [label, label given]
  /// Texts by the probability of the label that they get, in 15 bins of equal width. The calibration error is the mean
  /// over texts of |share of right ones - mean probability| of their bin. Source: Guo et al., arXiv:1706.04599.
  struct Bin {
    std::int64_t texts = 0;
    double right = 0, probability = 0;  ///< sums over the texts
  };
  std::vector<Bin> calibration_bins;
  std::string right;  ///< '1' or '0' by text
  double seconds = 0;
};

/// \param names  of the labels
LabelResult label_result(const LabelScores& scores, const std::vector<std::string>& names);
void add_to_json(const LabelResult& result, nlohmann::json& report);
std::vector<std::string> to_text(const LabelResult& result);
void add_metrics(const LabelResult& result, std::vector<Metric>& metrics);

}  // namespace fsdp
