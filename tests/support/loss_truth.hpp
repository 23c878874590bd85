#pragma once
// torch's cross_entropy(reduction="none") times weights, and its gradient by autograd, in float64.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

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

/// Targets of which some are ignored, with weights of both signs of which some are 0.
inline Targets weighted_targets(std::int64_t rows, std::int64_t vocab) {
  Targets targets(at::randint(0, vocab, {rows}, at::kInt), at::randn({rows}));
  if (rows > 2) targets.ids_N.narrow(0, 1, 2).fill_(-1);
  for (std::int64_t row = 3; row < rows; row += 4) targets.weights_N[row] = 0.0f;
  return targets;
}

}  // namespace fsdp::test
