// What attention allocates inside ATen, by shape.
//
// Sources, PyTorch 2.11: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp (cpu_flash_attention and its backward);
// native/transformers/cuda/flash_attn/flash_api.cpp (mha_fwd, mha_bwd); native/transformers/cuda/attention.cu and
// attention_backward.cu with mem_eff_attention/kernel_backward.h (workspace_size); attention.cpp (the choice, and the
// formula that is left when no fused kernel takes the inputs).
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/model/simulated_ops.hpp"
#include "lib/tensor/memory_recorder.hpp"

namespace fsdp::detail {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

at::TensorOptions float_like(const at::Tensor& x) { return x.options().dtype(at::kFloat); }

/// [B, L, heads, D]
at::Tensor rows_of(const at::Tensor& like, const AttentionShape& s, std::int64_t heads) {
  return at::empty({s.rows, s.length, heads, s.head_size}, like.options());
}

enum class Kernel { flash, memory_efficient, formula };

/// scaled_dot_product_attention's choice on CUDA.
Kernel choose(const at::Tensor& qkv, const AttentionShape& s) {
  if (s.dropout > 0) return Kernel::formula;
  const bool narrow = qkv.element_size() == 2;
  const int capability = simulated_traits().compute_capability;
  if (narrow && capability >= 80 && s.head_size <= 256) return Kernel::flash;
  if (s.group() > 1) return Kernel::formula;
  // Without bfloat16 below 8.0.
  if (qkv.scalar_type() == at::kBFloat16 && capability < 80) return Kernel::formula;
  return Kernel::memory_efficient;
}

/// flash_api.cpp, num_splits_heuristic: parts into which the keys are dealt out when there are few rows.
std::int64_t flash_splits(const AttentionShape& s) {
  const auto block_n = s.head_size <= 64 ? 256 : (s.head_size <= 128 ? 128 : 64);
  const auto n_blocks = ceil_div(s.length, block_n);
  const auto tiles = s.rows * s.heads * ceil_div(s.length, 64);
  const std::int64_t processors = 2 * simulated_traits().multiprocessors;
  if (static_cast<float>(tiles) >= 0.8f * static_cast<float>(processors)) return 1;
  const auto most = std::min({std::int64_t{128}, processors, n_blocks});
  const auto eligible = [&](std::int64_t n) { return n == 1 || ceil_div(n_blocks, n) != ceil_div(n_blocks, n - 1); };
  const auto efficiency = [&](std::int64_t n) {
    if (!eligible(n)) return 0.0f;
    const float waves = static_cast<float>(tiles * n) / static_cast<float>(processors);
    return waves / std::ceil(waves);
  };
  float best = 0;
  for (std::int64_t n = 1; n <= most; ++n) best = std::max(best, efficiency(n));
  for (std::int64_t n = 1; n <= most; ++n) {
    if (eligible(n) && efficiency(n) >= 0.85f * best) return n;
  }
  return 1;
}

at::Tensor flash_forward(const at::Tensor& qkv, const AttentionShape& s, at::Tensor& logsumexp) {
  auto out = rows_of(qkv, s, s.heads);
  logsumexp = at::empty({s.rows, s.heads, s.length}, float_like(qkv));
  at::Tensor sums, parts;
  if (const auto splits = flash_splits(s); splits > 1) {
    const auto width = round_up(round_up(s.head_size, 8), s.head_size <= 128 ? 32 : 64);
    sums = at::empty({splits, s.rows, s.heads, s.length}, float_like(qkv));
    parts = at::empty({splits, s.rows, s.heads, s.length, width}, float_like(qkv));
  }
  return out;
}

struct Gradients {
  at::Tensor q, k, v;
};

Gradients flash_backward(const at::Tensor& qkv, const AttentionShape& s) {
  const auto length = round_up(s.length, 128);
  const auto width = round_up(round_up(s.head_size, 8), s.head_size <= 128 ? 32 : 64);
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.key_heads()), rows_of(qkv, s, s.key_heads())};
  const auto softmax_d = at::empty({s.rows, s.heads, length}, float_like(qkv));
  const auto q_sums = at::empty({s.rows, length, s.heads, width}, float_like(qkv));
  if (s.group() > 1) {
    const auto k_expanded = rows_of(qkv, s, s.heads), v_expanded = rows_of(qkv, s, s.heads);
    return grads;
  }
  return grads;
}

at::Tensor efficient_forward(const at::Tensor& qkv, const AttentionShape& s, bool keep, at::Tensor& logsumexp) {
  auto out = rows_of(qkv, s, s.heads);
  if (keep) logsumexp = at::empty({s.rows, s.heads, round_up(s.length, 32)}, float_like(qkv));
  if (qkv.element_size() == 2 && s.head_size > 128) {
    const auto sums = at::empty({s.rows, s.length, s.heads, s.head_size}, float_like(qkv));
  }
  return out;
}

Gradients efficient_backward(const at::Tensor& qkv, const AttentionShape& s) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto delta = at::empty({s.rows, s.heads, s.length}, float_like(qkv));
  constexpr std::int64_t kTile = 64, kTile_bytes = 16 + kTile * kTile * 4;
  const auto tiles = ceil_div(s.length, kTile) * ceil_div(s.head_size, kTile);
  const auto workspace = at::empty({s.rows * s.heads * tiles * kTile_bytes}, qkv.options().dtype(at::kByte));
  return grads;
}

/// Scores, mask and probabilities in full; autograd keeps what its backward reads.
at::Tensor formula_forward(const at::Tensor& qkv, const AttentionShape& s, AttentionSaved& saved) {
  const auto wide = [&] { return at::empty({s.rows, s.heads, s.length, s.length}, float_like(qkv)); };
  const auto keys = s.group() > 1 ? rows_of(qkv, s, s.heads) : at::Tensor();
  at::Tensor probs;
  {
    const auto raw = at::empty({s.rows, s.heads, s.length, s.length}, qkv.options());
    const auto scores = wide();
    const auto scaled = wide();
    const auto masked = wide();
    probs = wide();
  }
  saved.probs_BHLL = probs;
  saved.graph_q = keys;
  saved.graph_k = wide();                                   // the dropout mask
  saved.graph_v = at::empty(probs.sizes(), qkv.options());  // what multiplies the values
  return rows_of(qkv, s, s.heads);
}

Gradients formula_backward(const at::Tensor& qkv, const AttentionShape& s, AttentionSaved& saved) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto narrow = at::empty_like(saved.graph_v);
  const auto grad_dropped = at::empty_like(saved.probs_BHLL), grad_probs = at::empty_like(saved.probs_BHLL);
  const auto grad_scores = at::empty_like(saved.probs_BHLL), grad_scaled = at::empty_like(saved.probs_BHLL);
  return grads;
}

/// Rows of queries that ATen's CPU kernels take at once, and of keys.
std::int64_t cpu_query_rows(std::int64_t length) {
  return std::min<std::int64_t>(length, length >= 768 ? 256 : (length >= 192 ? 64 : 32));
}
std::int64_t cpu_key_rows(std::int64_t length) { return std::min<std::int64_t>(length, 512); }

/// Once for each head of queries, where heads share keys.
at::Tensor repeated(const at::Tensor& qkv, const AttentionShape& s) {
  return s.group() > 1 ? rows_of(qkv, s, s.heads) : at::Tensor();
}

at::Tensor cpu_forward(const at::Tensor& qkv, const AttentionShape& s, at::Tensor& logsumexp) {
  const auto k = repeated(qkv, s), v = repeated(qkv, s);
  const bool narrow = qkv.element_size() == 2;
  auto out = rows_of(qkv, s, s.heads);
  logsumexp = at::empty({s.rows, s.length, s.heads}, float_like(qkv));
  const auto q_rows = cpu_query_rows(s.length), k_rows = cpu_key_rows(s.length);
  const std::int64_t threads = simulated_traits().threads;
  const auto buffer = at::empty({threads, q_rows * (k_rows + 2 + s.head_size)}, float_like(qkv));
  const auto reduced = at::empty({threads, q_rows, narrow ? k_rows : 0}, qkv.options());
  return out;
}

Gradients cpu_backward(const at::Tensor& qkv, const AttentionShape& s) {
  const bool narrow = qkv.element_size() == 2;
  const auto rows = cpu_query_rows(s.length) * cpu_key_rows(s.length);
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const std::int64_t threads = simulated_traits().threads;
  const auto buffer = at::empty({threads, 2 * rows}, float_like(qkv));
  const auto reduced = at::empty({threads, narrow ? 2 * rows : 0}, qkv.options());
  return grads;
}

}  // namespace

at::Tensor simulated_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                               AttentionSaved& saved) {
  at::Tensor out, logsumexp;
  AttentionSaved formula;
  if (!simulating_cuda()) {
    out = cpu_forward(qkv_N3D, shape, logsumexp);
  } else {
    switch (choose(qkv_N3D, shape)) {
      case Kernel::flash:
        out = flash_forward(qkv_N3D, shape, logsumexp);
        break;
      case Kernel::memory_efficient:
        out = efficient_forward(qkv_N3D, shape, keep_for_backward, logsumexp);
        break;
      case Kernel::formula:
        out = formula_forward(qkv_N3D, shape, formula);
        break;
    }
  }
  if (keep_for_backward) {
    saved = formula;
    saved.logsumexp = logsumexp;
  }
  // The kernels write [B, L, H, D]: merging the heads is a view.
  return out.view({shape.rows * shape.length, shape.heads * shape.head_size});
}

at::Tensor simulated_attention_backward(const at::Tensor&, const at::Tensor& qkv_N3D, const AttentionShape& shape,
                                        AttentionSaved& saved) {
  auto grad_qkv = at::empty_like(qkv_N3D);
  Gradients grads;
  if (!simulating_cuda()) {
    const auto k = repeated(qkv_N3D, shape), v = repeated(qkv_N3D, shape);
    grads = cpu_backward(qkv_N3D, shape);
  } else {
    switch (choose(qkv_N3D, shape)) {
      case Kernel::flash:
        grads = flash_backward(qkv_N3D, shape);
        break;
      case Kernel::memory_efficient:
        grads = efficient_backward(qkv_N3D, shape);
        break;
      case Kernel::formula:
        grads = formula_backward(qkv_N3D, shape, saved);
        break;
    }
  }
  saved = {};
  return grad_qkv;
}

}  // namespace fsdp::detail
