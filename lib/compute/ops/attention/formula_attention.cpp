// Attention by plain operators with all scores at once: for inputs that no fused kernel supports, and for dropout,
// where a fused kernel would draw a new mask when activation checkpointing reruns the forward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>

#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/ops/device_ops.hpp"

namespace fsdp {

using namespace detail;

at::Tensor DeviceOps::formula_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                                        std::unique_ptr<AttentionState>* state) const {
  if (s.rows == 0) return at::empty({0, s.heads * s.head_size}, qkv_NC.options());
  auto saved = std::make_unique<AttentionState>();
  {
    const auto keys = for_every_head(part_of(qkv_NC, s, Part::k), s);
    auto scores = at::matmul(part_of(qkv_NC, s, Part::q), keys.transpose(-2, -1)).to(at::kFloat);
    scores.mul_(static_cast<double>(score_scale(s)));
    if (s.softcap > 0) {
      scores.div_(s.softcap).tanh_();
      if (state != nullptr) saved->slope_BHLL = 1 - scores.square();
      scores.mul_(s.softcap);
    }
    mask_scores(scores, s);
    saved->probs_BHLL = scores.softmax(-1);
  }
  auto used = saved->probs_BHLL;
  if (s.dropout > 0) {
    const auto keys = dropout_keys(s.dropout_place, s.heads * s.query_length, kScoreKeyStep);
    saved->mask_BHLL = dropout_mask(keys, s.query_length, s.dropout, at::kFloat).view(used.sizes());
    used = used * saved->mask_BHLL;
  }
  const auto values = for_every_head(part_of(qkv_NC, s, Part::v), s);
  auto out_ND = merge_heads(at::matmul(used.to(values.scalar_type()), values), s);
  if (state != nullptr) *state = std::move(saved);
  return out_ND;
}

at::Tensor DeviceOps::formula_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                                 const AttentionShape& s, std::unique_ptr<AttentionState> state) const {
  if (s.rows == 0) return at::empty_like(qkv_NC);
  const auto& saved = *state;
  const auto& probs = saved.probs_BHLL;
  const auto dtype = qkv_NC.scalar_type();
  const auto grad_out = heads_of(grad_out_ND, s);
  auto grad_qkv = at::empty_like(qkv_NC);
  const auto write = [&](Part which, const at::Tensor& grad) { part_of(grad_qkv, s, which).copy_(grad); };
  {
    const auto used = saved.mask_BHLL.defined() ? probs * saved.mask_BHLL : probs;
    write(Part::v, sum_of_groups(at::matmul(used.to(dtype).transpose(-2, -1), grad_out), s));
  }
  at::Tensor grad_scores;
  {
    const auto values = for_every_head(part_of(qkv_NC, s, Part::v), s);
    auto grad_probs = at::matmul(grad_out, values.transpose(-2, -1)).to(at::kFloat);
    if (saved.mask_BHLL.defined()) grad_probs.mul_(saved.mask_BHLL);
    // Softmax backward: p (g - sum(p g)).
    grad_probs.sub_((grad_probs * probs).sum(at::IntArrayRef{-1}, true)).mul_(probs);
    if (saved.slope_BHLL.defined()) grad_probs.mul_(saved.slope_BHLL);
    grad_scores = grad_probs.mul_(static_cast<double>(score_scale(s))).to(dtype);
  }
  write(Part::q, at::matmul(grad_scores, for_every_head(part_of(qkv_NC, s, Part::k), s)));
  write(Part::k, sum_of_groups(at::matmul(grad_scores.transpose(-2, -1), part_of(qkv_NC, s, Part::q)), s));
  return grad_qkv;
}

}  // namespace fsdp
