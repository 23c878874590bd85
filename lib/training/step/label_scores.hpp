#pragma once
// Labels that a classifier gives to texts.
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

struct LabelScores {
  std::int64_t labels = 0;
  std::vector<double> log_probs;  ///< [records, labels]: natural logarithms
  std::vector<double> targets;    ///< [records]: the number of the label that the text has
};

/// Computes the log-probability of each label for the records that `rows` reads. Collective; the same result on every
/// rank. \param micro_batch_size  rows on one rank \param progress  called on every rank with the share that is done
/// \pre the model is a classifier
LabelScores label_scores(ModelRuntime& runtime, const TokenLoader& rows, std::int64_t micro_batch_size,
                         const std::function<void(double done)>& progress);

}  // namespace fsdp
