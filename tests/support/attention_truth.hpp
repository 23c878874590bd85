#pragma once
// Reference attention in float64 with gradients from autograd.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "lib/compute/ops/ops.hpp"

namespace fsdp::test {

struct AttentionResult {
  at::Tensor out_ND;
  at::Tensor grad_qkv;
};

inline AttentionResult run_attention(const Ops& ops, const at::Tensor& qkv, const at::Tensor& grad_out,
                                     const AttentionShape& shape) {
  std::unique_ptr<AttentionState> state;
  const auto out = ops.attention(qkv, shape, &state);
  return {out, ops.attention_backward(grad_out, qkv, out, shape, std::move(state))};
}

/// Supports grouped keys, a sliding window, a cap on logits and a scale.
inline AttentionResult attention_truth(const at::Tensor& qkv, const at::Tensor& grad_out, const AttentionShape& s) {
  const auto x = qkv.to(at::kDouble).requires_grad_(true);
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return x.view({s.rows, s.query_length, s.heads + 2 * s.key_heads(), s.head_size})
        .narrow(2, first, count)
        .transpose(1, 2);
  };
  const auto keys = heads(s.heads, s.key_heads()).repeat_interleave(s.group(), 1);
  const auto values = heads(s.heads + s.key_heads(), s.key_heads()).repeat_interleave(s.group(), 1);
  auto scores = at::matmul(heads(0, s.heads), keys.transpose(2, 3)) *
                (s.scale > 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.head_size)));
  if (s.softcap > 0) scores = s.softcap * at::tanh(scores / s.softcap);
  auto unseen = at::ones({s.query_length, s.query_length}, at::kBool).triu(1);
  if (s.window > 0) unseen = unseen.logical_or(at::ones({s.query_length, s.query_length}, at::kBool).tril(-s.window));
  const auto probs = scores.masked_fill(unseen, -INFINITY).softmax(-1);
  const auto out = at::matmul(probs, values).transpose(1, 2).reshape({s.rows * s.query_length, s.heads * s.head_size});
  const auto grads = torch::autograd::grad({out}, {x}, {grad_out.to(at::kDouble)});
  return {out.detach(), grads[0]};
}

}  // namespace fsdp::test
