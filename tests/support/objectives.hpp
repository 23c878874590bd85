#pragma once
// Objectives other than the next token's: weights of targets that the data say, and a comparison of two sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>

#include <string>
#include <vector>

#include "lib/compute/tensor/sequences.hpp"
#include "lib/training/objectives/objective.hpp"

namespace fsdp::test {

/// The weight of a target is the remainder of its id: 0, 1 or 2.
class WeighedById final : public Objective {
 public:
  bool has_weights() const override { return true; }
  StepCounts weigh(MicroBatch& batch) const override {
    batch.weights_N = batch.targets_N.remainder(3).to(at::kFloat);
    const auto weight = batch.weights_N.mul(batch.targets_N.ge(0)).sum().item<double>();
    return {weight, weight};
  }
};

/// Direct preference optimization (Rafailov et al., 2023) with a reference that finds all sequences equally likely: the
/// first of two sequences is preferred. The loss is -log sigmoid(beta (nats of the second - nats of the first)).
class Preference final : public Objective {
 public:
  static constexpr double kBeta = 0.5;
  std::vector<std::string> sums() const override { return {"preferred"}; }
  bool has_weights() const override { return true; }
  StepCounts weigh(MicroBatch& batch) const override {
    const auto pairs = static_cast<double>(sequences_of(batch).size() / 2);
    return {pairs, pairs};
  }
  bool joins_sequences() const override { return true; }
  at::Tensor join(const MicroBatch&, const at::Tensor& nats_S, StepSums& sums) const override {
    const auto nats_P2 = nats_S.view({-1, 2});
    const auto margin_P = (nats_P2.select(1, 1) - nats_P2.select(1, 0)).mul(kBeta);
    sums.add_loss(at::log1p(at::exp(margin_P.neg())).sum(), static_cast<double>(margin_P.numel()));
    sums.add("preferred", margin_P.gt(0).sum(at::kDouble));
    const auto slope_P = at::sigmoid(margin_P.neg()).mul(kBeta);
    return at::stack({slope_P, slope_P.neg()}, 1).reshape({-1});
  }
};

}  // namespace fsdp::test
