#pragma once
// Objectives other than the next token's: weights of targets that the data say, and a comparison of two sequences.
#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

#include "lib/training/step/objective.hpp"

namespace fsdp::test {

/// The weight of a target is the remainder of its id: 0, 1 or 2.
class WeighedById final : public Objective {
 public:
  bool has_weights() const override { return true; }
  double weigh(MicroBatch& batch) const override {
    batch.weights_N = batch.targets_N.remainder(3).to(at::kFloat);
    return batch.weights_N.mul(batch.targets_N.ge(0)).sum().item<double>();
  }
};

/// Direct preference optimization (Rafailov et al., 2023) with a reference that finds all sequences equally likely: the
/// first of two sequences is preferred. The loss is -log sigmoid(beta (nats of the second - nats of the first)).
class Preference final : public Objective {
 public:
  static constexpr double kBeta = 0.5;
  std::vector<std::string> sums() const override { return {"preferred"}; }
  bool has_weights() const override { return true; }
  double weigh(MicroBatch& batch) const override { return static_cast<double>(sequences_of(batch).size() / 2); }
  bool joins_sequences() const override { return true; }
  std::vector<double> join(const MicroBatch&, std::span<const SequenceLoss> sequences, StepSums& sums) const override {
    std::vector<double> slopes;
    for (std::size_t i = 0; i + 1 < sequences.size(); i += 2) {
      const double margin = kBeta * (sequences[i + 1].nats - sequences[i].nats);
      sums.nats += std::log1p(std::exp(-margin));
      sums.weight += 1;
      sums.add("preferred", margin > 0 ? 1.0 : 0.0);
      const double slope = kBeta / (1 + std::exp(margin));
      slopes.insert(slopes.end(), {slope, -slope});
    }
    slopes.resize(sequences.size(), 0.0);
    return slopes;
  }
};

}  // namespace fsdp::test
