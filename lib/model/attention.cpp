#include "lib/model/attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "lib/kernels/kernels.hpp"
#include "lib/model/ops.hpp"
#include "lib/model/simulated_ops.hpp"
#include "lib/tensor/gemm.hpp"
#include "lib/tensor/memory_recorder.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// The packed projections seen as their q, k or v part: [B, heads of that part, L, head_size], strided.
at::Tensor part(const at::Tensor& qkv_N3D, const AttentionShape& s, std::int64_t which) {
  const auto width = s.packed_width();
  const auto first_head = which == 0 ? 0 : s.heads + (which - 1) * s.key_heads();
  return qkv_N3D.as_strided({s.rows, which == 0 ? s.heads : s.key_heads(), s.length, s.head_size},
                            {s.length * width, s.head_size, width, 1},
                            qkv_N3D.storage_offset() + first_head * s.head_size);
}

/// Of x [H, ...] the heads that are member `member` of their groups: [kv_heads, ...], a view.
at::Tensor members(const at::Tensor& x, const AttentionShape& s, std::int64_t member) {
  if (s.group() == 1) return x;
  return x.unflatten(0, {s.key_heads(), s.group()}).select(1, member);
}

/// Keys or values [B, kv_heads, L, head_size] once for each head of queries.
at::Tensor for_every_head(const at::Tensor& x, const AttentionShape& s) {
  return s.group() == 1 ? x : x.repeat_interleave(s.group(), 1);
}

/// The inverse for gradients: heads of one group add up.
at::Tensor sum_of_groups(const at::Tensor& x, const AttentionShape& s) {
  return s.group() == 1 ? x : x.unflatten(1, {s.key_heads(), s.group()}).sum(2);
}

/// out (+)= sum over the group's members of a(member) @ b(member)
template <typename Left, typename Right>
void sum_over_group(at::Tensor out, const AttentionShape& s, const Left& a, const Right& b) {
  gemm_out(out, a(0), b(0));
  for (std::int64_t m = 1; m < s.group(); ++m) {
    auto more = at::empty_like(out);
    gemm_out(more, a(m), b(m));
    out.add_(more);
  }
}

at::Tensor heads_of(const at::Tensor& x_ND, const AttentionShape& s) {
  return x_ND.view({s.rows, s.length, s.heads, s.head_size}).transpose(1, 2);
}

float score_scale(const AttentionShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_size)); }

/// One key per row of scores, so that a dropped probability depends on sample, head and position alone.
at::Tensor score_keys(const AttentionShape& s) {
  const MemoryScope scope(MemoryCategory::activations, true);
  auto keys = at::empty({s.rows, s.heads, s.length}, at::TensorOptions(at::kLong).device(host_device()));
  if (simulating()) return keys.view({-1});
  auto* out = keys.data_ptr<std::int64_t>();
  const auto* per_row = s.dropout_keys.const_data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < s.rows; ++b) {
    for (std::int64_t i = 0; i < s.heads * s.length; ++i) {
      *out++ = static_cast<std::int64_t>(static_cast<std::uint64_t>(per_row[b]) +
                                         static_cast<std::uint64_t>(i) * 0x632be59bd9b4e019ull);
    }
  }
  return keys.view({-1});
}

/// Each sequence takes the room that the first one took and gave back.
std::int64_t sequences(const AttentionShape& s) { return simulating() ? std::min<std::int64_t>(s.rows, 1) : s.rows; }

template <typename Body>
void for_score_rows(std::int64_t rows, std::int64_t length, const Body& body) {
  if (simulating()) return;
  // A row block of `length` must not be split: a row's number within it tells how many columns it may see.
  at::parallel_for(0, rows / length, std::max<std::int64_t>(1, 32768 / (length * length)),
                   [&](std::int64_t b, std::int64_t e) { body(b * length, e * length); });
}

at::Tensor short_row_forward(const at::Tensor& qkv_N3D, const AttentionShape& s, AttentionSaved& saved) {
  const auto q = part(qkv_N3D, s, 0);
  const auto k = part(qkv_N3D, s, 1);
  const auto v = part(qkv_N3D, s, 2);
  auto probs = at::empty({s.rows, s.heads, s.length, s.length}, qkv_N3D.options());
  auto out_ND = at::empty({s.rows * s.length, s.heads * s.head_size}, qkv_N3D.options());
  // Per sequence: the batch dimension is then the heads', whose stride batched products take without a copy.
  for (std::int64_t b = 0; b < sequences(s); ++b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto scores = members(probs[b], s, m);
      gemm_out(scores, members(q[b], s, m), k[b].transpose(1, 2));
    }
  }
  const auto type = kernel_type(qkv_N3D.scalar_type());
  const kernels::SoftmaxArgs args{probs.data_ptr(), s.length, s.length, score_scale(s)};
  for_score_rows(s.rows * s.heads * s.length, s.length,
                 [&](auto b, auto e) { kernels::table().causal_softmax(type, args, b, e); });
  saved.probs_BHLL = probs;
  auto used = probs;
  if (s.dropout > 0) {
    used = probs.clone().view({-1, s.length});
    ops::dropout(used, score_keys(s), s.dropout);
    used = used.view(probs.sizes());
  }
  auto out = heads_of(out_ND, s);
  for (std::int64_t b = 0; b < sequences(s); ++b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto target = members(out[b], s, m);
      gemm_out(target, members(used[b], s, m), v[b]);
    }
  }
  return out_ND;
}

at::Tensor short_row_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D, const AttentionShape& s,
                              AttentionSaved& saved) {
  const auto q = part(qkv_N3D, s, 0);
  const auto k = part(qkv_N3D, s, 1);
  const auto v = part(qkv_N3D, s, 2);
  const auto grad_out = heads_of(grad_out_ND, s);
  auto grad_qkv = at::empty_like(qkv_N3D);
  const auto grad_q = part(grad_qkv, s, 0);
  const auto grad_k = part(grad_qkv, s, 1);
  const auto grad_v = part(grad_qkv, s, 2);
  const auto& probs = saved.probs_BHLL;
  auto used = probs;
  at::Tensor keys;
  if (s.dropout > 0) {
    keys = score_keys(s);
    used = probs.clone().view({-1, s.length});
    ops::dropout(used, keys, s.dropout);
    used = used.view(probs.sizes());
  }
  auto grad_scores = at::empty_like(probs);
  for (std::int64_t b = 0; b < sequences(s); ++b) {
    const auto grad_of = [&](std::int64_t m) { return members(grad_out[b], s, m); };
    sum_over_group(
        grad_v[b], s, [&](std::int64_t m) { return members(used[b], s, m).transpose(1, 2); }, grad_of);
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto gs = members(grad_scores[b], s, m);
      gemm_out(gs, grad_of(m), v[b].transpose(1, 2));
    }
  }
  if (s.dropout > 0) {
    auto flat = grad_scores.view({-1, s.length});
    ops::dropout(flat, keys, s.dropout);
  }
  const auto type = kernel_type(qkv_N3D.scalar_type());
  const kernels::SoftmaxBackwardArgs args{grad_scores.data_ptr(), probs.const_data_ptr(), s.length, s.length,
                                          score_scale(s)};
  for_score_rows(s.rows * s.heads * s.length, s.length,
                 [&](auto b, auto e) { kernels::table().causal_softmax_backward(type, args, b, e); });
  for (std::int64_t b = 0; b < sequences(s); ++b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto gq = members(grad_q[b], s, m);
      gemm_out(gq, members(grad_scores[b], s, m), k[b]);
    }
    sum_over_group(
        grad_k[b], s, [&](std::int64_t m) { return members(grad_scores[b], s, m).transpose(1, 2); },
        [&](std::int64_t m) { return members(q[b], s, m); });
  }
  saved = {};
  return grad_qkv;
}

bool use_short_rows(const at::Tensor& qkv, const AttentionShape& s) {
  return runs_on_host(qkv.device()) && (s.length <= kShortRow || s.dropout > 0);
}

/// [B * H * L, L], on the host
at::Tensor dropout_mask(const AttentionShape& s) {
  const MemoryScope scope(MemoryCategory::activations, true);
  auto mask = at::ones({s.rows * s.heads * s.length, s.length}, at::TensorOptions(at::kFloat).device(host_device()));
  if (!simulating()) ops::dropout(mask, score_keys(s), s.dropout);
  return mask;
}

/// Attention by its formula, for dropout on other devices: a fused kernel would draw a mask of its own, another one
/// when activation checkpointing runs the forward again.
at::Tensor formula_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& s) {
  auto scores =
      at::matmul(q, for_every_head(k, s).transpose(-2, -1)).to(at::kFloat) * static_cast<double>(score_scale(s));
  const auto future = at::ones({s.length, s.length}, scores.options().dtype(at::kBool)).triu(1);
  const auto masked = scores.masked_fill(future, -INFINITY);
  const auto probs = simulating_cuda() ? detail::simulated_softmax(masked, false) : masked.softmax(-1);
  auto mask = dropout_mask(s);
  mask = mask.view(probs.sizes());
  // A meta tensor that stands for the host's does not move.
  const auto device_mask = simulating_cuda() ? at::empty_like(mask) : mask.to(probs.device());
  return at::matmul((probs * device_mask).to(v.scalar_type()), for_every_head(v, s));
}

/// Forward on devices without kernels of ours.
at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& s) {
  if (s.dropout > 0) return formula_attention(q, k, v, s);
  if (simulating()) return detail::simulated_plain_attention(q, k, v, s);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, std::nullopt, /*enable_gqa=*/s.group() > 1);
}

/// Where gradients of q, k and v end. What torch::autograd::grad returns is also held by the engine's thread for a
/// moment more, by chance until after the next allocation: memory would not be the same in each run.
class PackedGradient final : public torch::autograd::Node {
 public:
  explicit PackedGradient(const AttentionShape& shape) : shape_(shape) {}
  at::Tensor target;  ///< packed, of the shape of qkv

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const auto taken = std::move(grads);
    for (std::size_t i = 0; i < taken.size(); ++i) part(target, shape_, static_cast<std::int64_t>(i)).copy_(taken[i]);
    target.reset();
    return {};
  }

 private:
  AttentionShape shape_;
};

at::Tensor merge_heads(const at::Tensor& x_BHLD, const AttentionShape& s) {
  return x_BHLD.transpose(1, 2).reshape({s.rows * s.length, s.heads * s.head_size});
}

}  // namespace

namespace detail {

at::Tensor device_causal_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                                   AttentionSaved& saved) {
  const auto q = part(qkv_N3D, shape, 0), k = part(qkv_N3D, shape, 1), v = part(qkv_N3D, shape, 2);
  if (!keep_for_backward) return merge_heads(device_attention(q, k, v, shape), shape);
  // Other devices choose among several fused kernels; autograd knows each one's backward.
  const at::AutoGradMode with_graph(true);
  const std::shared_ptr<PackedGradient> gradient(new PackedGradient(shape), torch::autograd::deleteNode);
  std::tie(saved.graph_q, saved.graph_k, saved.graph_v) = std::tuple(q.detach(), k.detach(), v.detach());
  for (auto* x : {&saved.graph_q, &saved.graph_k, &saved.graph_v}) torch::autograd::set_history(*x, gradient);
  saved.graph_out = device_attention(saved.graph_q, saved.graph_k, saved.graph_v, shape);
  return merge_heads(saved.graph_out.detach(), shape);
}

at::Tensor device_causal_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D,
                                            const AttentionShape& shape, AttentionSaved& saved) {
  auto grad_qkv = at::empty_like(qkv_N3D);
  static_cast<PackedGradient&>(*saved.graph_q.grad_fn()).target = grad_qkv;
  torch::autograd::backward({saved.graph_out}, {heads_of(grad_out_ND, shape)});
  saved = {};
  return grad_qkv;
}

}  // namespace detail

at::Tensor causal_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                            AttentionSaved& saved) {
  if (shape.rows == 0) return at::empty({0, shape.heads * shape.head_size}, qkv_N3D.options());
  if (use_short_rows(qkv_N3D, shape)) {
    auto out = short_row_forward(qkv_N3D, shape, saved);
    if (!keep_for_backward) saved = {};
    return out;
  }
  const bool fused = simulating() && detail::has_simulated_kernel(qkv_N3D, shape);
  if (fused) return detail::simulated_attention(qkv_N3D, shape, keep_for_backward, saved);
  if (qkv_N3D.device().is_cpu()) {
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(qkv_N3D, shape, 0), for_every_head(part(qkv_N3D, shape, 1), shape),
        for_every_head(part(qkv_N3D, shape, 2), shape), 0.0, /*is_causal=*/true);
    if (keep_for_backward) saved.logsumexp = logsumexp;
    return merge_heads(out, shape);
  }
  return detail::device_causal_attention(qkv_N3D, shape, keep_for_backward, saved);
}

at::Tensor causal_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D, const at::Tensor& out_ND,
                                     const AttentionShape& shape, AttentionSaved& saved) {
  if (shape.rows == 0) return at::empty_like(qkv_N3D);
  if (use_short_rows(qkv_N3D, shape)) return short_row_backward(grad_out_ND, qkv_N3D, shape, saved);
  const bool fused = simulating() && detail::has_simulated_kernel(qkv_N3D, shape);
  if (fused) return detail::simulated_attention_backward(qkv_N3D, shape, saved);
  if (!qkv_N3D.device().is_cpu()) {
    return detail::device_causal_attention_backward(grad_out_ND, qkv_N3D, shape, saved);
  }
  auto grad_qkv = at::empty_like(qkv_N3D);
  const auto write = [&](std::int64_t which, const at::Tensor& grad) { part(grad_qkv, shape, which).copy_(grad); };
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      heads_of(grad_out_ND, shape), part(qkv_N3D, shape, 0), for_every_head(part(qkv_N3D, shape, 1), shape),
      for_every_head(part(qkv_N3D, shape, 2), shape), heads_of(out_ND, shape), saved.logsumexp, 0.0,
      /*is_causal=*/true);
  write(0, gq);
  write(1, sum_of_groups(gk, shape));
  write(2, sum_of_groups(gv, shape));
  saved = {};
  return grad_qkv;
}

}  // namespace fsdp
