#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

bool use_short_rows(const AttentionShape& s) { return s.query_length <= kShortRow || s.dropout > 0; }

/// Matrices of scores per thread; a matrix is not split, since a row's index in it is its number of unmasked columns
/// - 1.
std::int64_t score_grain(std::int64_t length) { return std::max<std::int64_t>(1, 32768 / (length * length)); }

/// Queries of a block. Masked scores are computed too: half a block's width for each query on average.
constexpr std::int64_t kQueries = 128;

/// Queries [begin, end) of a sequence and the keys [first_key, end) that they attend to.
struct Block {
  std::int64_t begin, end, first_key;
  std::int64_t queries() const { return end - begin; }
  std::int64_t keys() const { return end - first_key; }
};

Block block_of(const AttentionShape& s, std::int64_t index) {
  const auto begin = index * kQueries, end = std::min(s.query_length, begin + kQueries);
  return {begin, end, s.window > 0 ? std::max<std::int64_t>(0, begin - s.window + 1) : 0};
}

std::int64_t num_blocks(const AttentionShape& s) { return (s.query_length + kQueries - 1) / kQueries; }

kernels::ScoreBlock band_of(const AttentionShape& s, const Block& block) {
  return {block.queries(),
          block.keys(),
          block.keys(),
          block.begin - block.first_key,
          s.window,
          score_scale(s),
          static_cast<float>(s.softcap)};
}

/// Heads of one sequence: queries [H, L, head_size], keys and values [kv_heads, L, head_size].
struct Sequence {
  at::Tensor q, k, v;
  Sequence(const at::Tensor& qkv_NC, const AttentionShape& s, std::int64_t b)
      : q(part_of(qkv_NC, s, Part::q)[b]), k(part_of(qkv_NC, s, Part::k)[b]), v(part_of(qkv_NC, s, Part::v)[b]) {}
};

at::Tensor queries_of(const at::Tensor& x, const Block& block) { return x.narrow(1, block.begin, block.queries()); }
at::Tensor keys_of(const at::Tensor& x, const Block& block) { return x.narrow(1, block.first_key, block.keys()); }

std::int64_t band_grain(const Block& block) { return std::max<std::int64_t>(1, 32768 / block.keys()); }

}  // namespace

at::Tensor CpuOps::short_rows(const at::Tensor& qkv_NC, const AttentionShape& s, at::Tensor& probs) const {
  const auto q = part_of(qkv_NC, s, Part::q), k = part_of(qkv_NC, s, Part::k), v = part_of(qkv_NC, s, Part::v);
  probs = at::empty({s.rows, s.heads, s.query_length, s.query_length}, qkv_NC.options());
  auto out_ND = at::empty({s.rows * s.query_length, s.heads * s.head_size}, qkv_NC.options());
  // One sequence at a time: the batch dimension is then the heads, whose stride needs no copy in batched products.
  repeat(s.rows, [&](std::int64_t b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto scores = members(probs[b], s, m);
      product(scores, members(q[b], s, m), k[b].transpose(1, 2), false);
    }
  });
  const kernels::SoftmaxArgs args{probs.data_ptr(), s.query_length, s.query_length, score_scale(s)};
  launch(s.rows * s.heads, score_grain(s.query_length), [&](std::int64_t b, std::int64_t e) {
    cpu_->causal_softmax(kernel_type(qkv_NC), args, b * s.query_length, e * s.query_length);
  });
  auto used = probs;
  if (s.dropout > 0) {
    used = probs.clone().view({-1, s.query_length});
    dropout(used, dropout_keys(s.dropout_place, s.heads * s.query_length, kScoreKeyStep), s.dropout);
    used = used.view(probs.sizes());
  }
  auto out = heads_of(out_ND, s);
  repeat(s.rows, [&](std::int64_t b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto target = members(out[b], s, m);
      product(target, members(used[b], s, m), v[b], false);
    }
  });
  return out_ND;
}

at::Tensor CpuOps::short_rows_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const AttentionShape& s,
                                       const at::Tensor& probs) const {
  const auto q = part_of(qkv_NC, s, Part::q), k = part_of(qkv_NC, s, Part::k), v = part_of(qkv_NC, s, Part::v);
  const auto grad_out = heads_of(grad_out_ND, s);
  auto grad_qkv = at::empty_like(qkv_NC);
  const auto grad_q = part_of(grad_qkv, s, Part::q), grad_k = part_of(grad_qkv, s, Part::k),
             grad_v = part_of(grad_qkv, s, Part::v);
  /// out = sum over the group's members of a(member) @ b(member)
  const auto sum_over_group = [&](at::Tensor out, const auto& a, const auto& b) {
    product(out, a(0), b(0), false);
    for (std::int64_t m = 1; m < s.group(); ++m) {
      auto more = at::empty_like(out);
      product(more, a(m), b(m), false);
      out.add_(more);
    }
  };
  auto used = probs;
  at::Tensor keys;
  if (s.dropout > 0) {
    keys = dropout_keys(s.dropout_place, s.heads * s.query_length, kScoreKeyStep);
    used = probs.clone().view({-1, s.query_length});
    dropout(used, keys, s.dropout);
    used = used.view(probs.sizes());
  }
  auto grad_scores = at::empty_like(probs);
  repeat(s.rows, [&](std::int64_t b) {
    const auto grad_of = [&](std::int64_t m) { return members(grad_out[b], s, m); };
    sum_over_group(
        grad_v[b], [&](std::int64_t m) { return members(used[b], s, m).transpose(1, 2); }, grad_of);
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto gs = members(grad_scores[b], s, m);
      product(gs, grad_of(m), v[b].transpose(1, 2), false);
    }
  });
  if (s.dropout > 0) {
    auto flat = grad_scores.view({-1, s.query_length});
    dropout(flat, keys, s.dropout);
  }
  const kernels::SoftmaxBackwardArgs args{grad_scores.data_ptr(), probs.const_data_ptr(), s.query_length,
                                          s.query_length, score_scale(s)};
  launch(s.rows * s.heads, score_grain(s.query_length), [&](std::int64_t b, std::int64_t e) {
    cpu_->causal_softmax_backward(kernel_type(qkv_NC), args, b * s.query_length, e * s.query_length);
  });
  repeat(s.rows, [&](std::int64_t b) {
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto gq = members(grad_q[b], s, m);
      product(gq, members(grad_scores[b], s, m), k[b], false);
    }
    sum_over_group(
        grad_k[b], [&](std::int64_t m) { return members(grad_scores[b], s, m).transpose(1, 2); },
        [&](std::int64_t m) { return members(q[b], s, m); });
  });
  return grad_qkv;
}

at::Tensor CpuOps::flash(const at::Tensor& qkv_NC, const AttentionShape& s, at::Tensor& logsumexp) const {
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      part_of(qkv_NC, s, Part::q), for_every_head(part_of(qkv_NC, s, Part::k), s),
      for_every_head(part_of(qkv_NC, s, Part::v), s), 0.0, /*is_causal=*/true, {}, given_scale(s));
  logsumexp = sums;
  return merge_heads(out, s);
}

at::Tensor CpuOps::flash_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                  const AttentionShape& s, const at::Tensor& logsumexp) const {
  auto grad_qkv = at::empty_like(qkv_NC);
  const auto write = [&](Part which, const at::Tensor& grad) { part_of(grad_qkv, s, which).copy_(grad); };
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      heads_of(grad_out_ND, s), part_of(qkv_NC, s, Part::q), for_every_head(part_of(qkv_NC, s, Part::k), s),
      for_every_head(part_of(qkv_NC, s, Part::v), s), heads_of(out_ND, s), logsumexp, 0.0, /*is_causal=*/true, {},
      given_scale(s));
  write(Part::q, gq);
  write(Part::k, sum_of_groups(gk, s));
  write(Part::v, sum_of_groups(gv, s));
  return grad_qkv;
}

at::Tensor CpuOps::row_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                                 std::unique_ptr<AttentionState>* state) const {
  if (s.rows == 0) return at::empty({0, s.heads * s.head_size}, qkv_NC.options());
  if (!s.is_plain()) {
    TORCH_INTERNAL_ASSERT(s.dropout == 0);
    if (state != nullptr) *state = std::make_unique<AttentionState>();
    return band(qkv_NC, s);
  }
  auto saved = std::make_unique<AttentionState>();
  auto out_ND = use_short_rows(s) ? short_rows(qkv_NC, s, saved->probs_BHLL) : flash(qkv_NC, s, saved->log_sums);
  if (state != nullptr) *state = std::move(saved);
  return out_ND;
}

at::Tensor CpuOps::row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                          const at::Tensor& out_ND, const AttentionShape& s,
                                          std::unique_ptr<AttentionState> state) const {
  if (s.rows == 0) return at::empty_like(qkv_NC);
  if (!s.is_plain()) return band_backward(grad_out_ND, qkv_NC, s);
  const auto& saved = *state;
  return use_short_rows(s) ? short_rows_backward(grad_out_ND, qkv_NC, s, saved.probs_BHLL)
                           : flash_backward(grad_out_ND, qkv_NC, out_ND, s, saved.log_sums);
}

// Attention with a window or a score cap, one block of queries at a time against the keys that at least one of them
// attends to: keys outside the window are skipped, and L x L scores are never held. The backward recomputes the
// probabilities of a block, at the cost of one more product.

at::Tensor CpuOps::band(const at::Tensor& qkv_NC, const AttentionShape& s) const {
  auto out_ND = at::empty({s.rows * s.query_length, s.heads * s.head_size}, qkv_NC.options());
  const auto out = heads_of(out_ND, s);
  repeat(s.rows * num_blocks(s), [&](std::int64_t i) {
    const auto b = i / num_blocks(s);
    const auto block = block_of(s, i % num_blocks(s));
    const Sequence in(qkv_NC, s, b);
    auto scores = at::empty({s.heads, block.queries(), block.keys()}, qkv_NC.options());
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto part = members(scores, s, m);
      product(part, members(queries_of(in.q, block), s, m), keys_of(in.k, block).transpose(1, 2), false);
    }
    const kernels::BandSoftmaxArgs args{band_of(s, block), scores.data_ptr(), scores.data_ptr()};
    launch(s.heads * block.queries(), band_grain(block),
           [&](auto begin, auto end) { cpu_->band_softmax(kernel_type(qkv_NC), args, begin, end); });
    for (std::int64_t m = 0; m < s.group(); ++m) {
      auto part = members(queries_of(out[b], block), s, m);
      product(part, members(scores, s, m), keys_of(in.v, block), false);
    }
  });
  return out_ND;
}

at::Tensor CpuOps::band_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                 const AttentionShape& s) const {
  const auto grad_out = heads_of(grad_out_ND, s);
  auto grad_qkv = at::empty_like(qkv_NC);
  repeat(s.rows, [&](std::int64_t b) {
    const Sequence in(qkv_NC, s, b), grad(grad_qkv, s, b);
    // Sums over blocks are float32 for any dtype.
    const auto wide = qkv_NC.options().dtype(at::kFloat);
    const auto sum_k = at::zeros({s.key_heads(), s.query_length, s.head_size}, wide),
               sum_v = at::zeros(sum_k.sizes(), wide);
    repeat(num_blocks(s), [&](std::int64_t i) {
      const auto block = block_of(s, i);
      const auto room = [&] { return at::empty({s.heads, block.queries(), block.keys()}, qkv_NC.options()); };
      const auto k = keys_of(in.k, block), v = keys_of(in.v, block), q = queries_of(in.q, block);
      const auto grad_of_out = queries_of(grad_out[b], block);
      auto scores = room(), probs = room(), grads = room();
      for (std::int64_t m = 0; m < s.group(); ++m) {
        auto part = members(scores, s, m), of_grads = members(grads, s, m);
        product(part, members(q, s, m), k.transpose(1, 2), false);
        product(of_grads, members(grad_of_out, s, m), v.transpose(1, 2), false);
      }
      const auto band = band_of(s, block);
      const kernels::BandSoftmaxArgs forward{band, scores.const_data_ptr(), probs.data_ptr()};
      const kernels::BandSoftmaxBackwardArgs backward{band, grads.data_ptr(), probs.const_data_ptr(),
                                                      s.softcap > 0 ? scores.const_data_ptr() : nullptr};
      launch(s.heads * block.queries(), band_grain(block), [&](auto begin, auto end) {
        cpu_->band_softmax(kernel_type(qkv_NC), forward, begin, end);
        cpu_->band_softmax_backward(kernel_type(qkv_NC), backward, begin, end);
      });
      auto more = at::empty({s.key_heads(), block.keys(), s.head_size}, qkv_NC.options());
      const auto add_to = [&](const at::Tensor& sum) {
        for (std::int64_t head = 0; head < s.key_heads(); ++head) {
          auto part = keys_of(sum, block)[head];
          if (part.scalar_type() == more.scalar_type()) {
            part.add_(more[head]);
          } else {
            add_converted(part, more[head]);
          }
        }
      };
      for (std::int64_t m = 0; m < s.group(); ++m) {
        product(more, members(probs, s, m).transpose(1, 2), members(grad_of_out, s, m), false);
        add_to(sum_v);
        product(more, members(grads, s, m).transpose(1, 2), members(q, s, m), false);
        add_to(sum_k);
        auto grad_q = members(queries_of(grad.q, block), s, m);
        product(grad_q, members(grads, s, m), k, false);
      }
    });
    grad.k.copy_(sum_k);
    grad.v.copy_(sum_v);
  });
  return grad_qkv;
}

}  // namespace fsdp
