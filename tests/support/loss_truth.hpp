#pragma once
// torch's cross_entropy(reduction="none") times weights, and its gradient by autograd, in float64.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp::test {

struct LossTruth {
  double nats, weight;
  at::Tensor grad_NV;  ///< of scale * nats; 0 in the padding
};

/// \param logits_NV  columns from `vocab` on are padding
inline LossTruth loss_truth(const at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab, double scale) {
  const auto x = logits_NV.to(at::kCPU).to(at::kDouble).requires_grad_(true);
  const auto ids = targets.ids_N.to(at::kCPU).to(at::kLong), weights = targets.weights_N.to(at::kCPU).to(at::kDouble);
  const auto losses = at::cross_entropy_loss(x.narrow(1, 0, vocab), ids, {}, at::Reduction::None, /*ignore_index=*/-1);
  const auto sum = (losses * weights).sum();
  const auto grads = torch::autograd::grad({sum * scale}, {x});
  return {sum.item<double>(), (weights * ids.ge(0)).sum().item<double>(), grads[0]};
}

/// The entropy of each row's softmax in float64, 0 where its target is ignored.
inline at::Tensor entropy_truth(const at::Tensor& logits_NV, const at::Tensor& ids_N, std::int64_t vocab) {
  const auto log_probs = at::log_softmax(logits_NV.to(at::kDouble).narrow(1, 0, vocab), 1);
  return log_probs.exp().mul(log_probs).sum(1).neg().mul(ids_N.ge(0));
}

/// Targets of which some are ignored, with weights of both signs of which some are 0.
inline Targets weighted_targets(std::int64_t rows, std::int64_t vocab) {
  Targets targets(at::randint(0, vocab, {rows}, at::kInt), at::randn({rows}));
  if (rows > 2) targets.ids_N.narrow(0, 1, 2).fill_(-1);
  for (std::int64_t row = 3; row < rows; row += 4) targets.weights_N[row] = 0.0f;
  return targets;
}

/// Checks the losses of three groups of rows, of which the last is empty, beside another sum.
template <class Room>
void check_groups(const Room& ops, const at::Tensor& logits_NV, std::int64_t rows, std::int64_t vocab) {
  auto targets = weighted_targets(rows, vocab);
  targets.groups_N = at::arange(rows, at::kInt).remainder_(2);
  std::vector<std::string> names{"other"};
  for (const auto& name : StepSums::names_of_groups({"even", "odd", "none"})) names.push_back(name);
  StepSums sums(names), without({"other"});
  auto grads = logits_NV.clone(), same = logits_NV.clone();
  ops.cross_entropy(sums, grads, targets, vocab, 0.5);
  ops.cross_entropy(without, same, targets, vocab, 0.5);
  ops.fetch(sums);
  ops.fetch(without);
  CHECK(sums.nats == without.nats);
  CHECK(sums.weight == without.weight);
  CHECK(at::equal(grads, same));
  CHECK(sums.named[0].value == 0);
  for (std::size_t group = 0; group < 3; ++group) {
    auto alone = targets;
    const auto is_in = targets.groups_N.eq(static_cast<std::int64_t>(group));
    alone.ids_N = at::where(is_in, targets.ids_N, at::full({}, -1, at::kInt));
    const auto want = loss_truth(logits_NV, alone, vocab, 0.5);
    // Losses of about 11 in float32 on a device.
    CHECK(std::abs(sums.named[1 + group].value - want.nats) <= 2e-6 * static_cast<double>(rows));
    CHECK(sums.named[4 + group].value == doctest::Approx(want.weight).epsilon(1e-6));
  }
}

}  // namespace fsdp::test
