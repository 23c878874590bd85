// Memory that attention allocates inside ATen, by shape.
//
// Sources, PyTorch 2.11: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp (cpu_flash_attention and its backward);
// native/transformers/cuda/flash_attn/flash_api.cpp (mha_fwd, mha_bwd);
// attention.cu and attention_backward.cu with mem_eff_attention/kernel_backward.h (workspace_size);
// native/cudnn/MHA.cpp. tests/gpu/memprobe_gpu_test.py checks order and sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "lib/compute/meta/gemm_scratch.hpp"
#include "lib/compute/meta/meta_attention.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
at::TensorOptions float_like(const at::Tensor& x) { return x.options().dtype(at::kFloat); }

/// [B, L, heads, D]
at::Tensor rows_of(const at::Tensor& like, const AttentionShape& s, std::int64_t heads) {
  return at::empty({s.rows, s.query_length, heads, s.head_size}, like.options());
}

/// Repeats keys or values for each query head, if heads share keys.
at::Tensor repeated(const at::Tensor& qkv, const AttentionShape& s) {
  return s.group() > 1 ? rows_of(qkv, s, s.heads) : at::Tensor();
}

/// flash_api.cpp, num_splits_heuristic: number of splits of the keys when there are few rows.
std::int64_t flash_splits(const GpuSpec& gpu, const AttentionShape& s) {
  const auto block_n = s.head_size <= 64 ? 256 : (s.head_size <= 128 ? 128 : 64);
  const auto n_blocks = ceil_div(s.query_length, block_n);
  const auto tiles = s.rows * s.heads * ceil_div(s.query_length, 64);
  const std::int64_t processors = 2 * gpu.multiprocessors;
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

void keep_random_state(const at::Tensor& qkv, std::int64_t bytes, AttentionState& kept) {
  const auto options = qkv.options().dtype(at::kByte);
  kept.random_seed = at::empty({bytes}, options);
  kept.random_offset = at::empty({8}, options);
}

at::Tensor flash_forward(const GpuSpec& gpu, const at::Tensor& qkv, const AttentionShape& s, AttentionState& kept) {
  auto out = rows_of(qkv, s, s.heads);
  kept.log_sums = at::empty({s.rows, s.heads, s.query_length}, float_like(qkv));
  at::Tensor sums, parts;
  if (const auto splits = flash_splits(gpu, s); splits > 1) {
    const auto width = round_up(round_up(s.head_size, 8), s.head_size <= 128 ? 32 : 64);
    sums = at::empty({splits, s.rows, s.heads, s.query_length}, float_like(qkv));
    parts = at::empty({splits, s.rows, s.heads, s.query_length, width}, float_like(qkv));
  }
  keep_random_state(qkv, 16, kept);
  return out;
}

struct Gradients {
  at::Tensor q, k, v;
};

Gradients flash_backward(const at::Tensor& qkv, const AttentionShape& s) {
  const auto length = round_up(s.query_length, 128);
  const auto width = round_up(round_up(s.head_size, 8), s.head_size <= 128 ? 32 : 64);
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.key_heads()), rows_of(qkv, s, s.key_heads())};
  const auto softmax_d = at::empty({s.rows, s.heads, length}, float_like(qkv));
  const auto q_sums = at::empty({s.rows, length, s.heads, width}, float_like(qkv));
  const auto k_expanded = repeated(qkv, s), v_expanded = repeated(qkv, s);
  return grads;
}

/// Temporary memory of cuDNN's engine is unknown; its frontend allocates float32 sums for the gradients of the queries.
at::Tensor cudnn_forward(const at::Tensor& qkv, const AttentionShape& s, bool keep, AttentionState& kept) {
  auto out = rows_of(qkv, s, s.heads);
  if (keep) kept.log_sums = at::empty({s.rows, s.heads, s.query_length}, float_like(qkv));
  keep_random_state(qkv, 8, kept);
  return out;
}

Gradients cudnn_backward(const at::Tensor& qkv, const AttentionShape& s) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.key_heads()), rows_of(qkv, s, s.key_heads())};
  const auto workspace = at::empty({s.rows * s.heads * s.query_length * (s.head_size + 1)}, float_like(qkv));
  return grads;
}

at::Tensor efficient_forward(const at::Tensor& qkv, const AttentionShape& s, bool keep, at::Tensor& logsumexp) {
  auto out = rows_of(qkv, s, s.heads);
  if (keep) logsumexp = at::empty({s.rows, s.heads, round_up(s.query_length, 32)}, float_like(qkv));
  if (qkv.element_size() == 2 && s.head_size > 128) {
    const auto sums = at::empty({s.rows, s.query_length, s.heads, s.head_size}, float_like(qkv));
  }
  return out;
}

/// Bytes that the backward kernel needs for a head of a sequence: kernel_backward.h, workspace_size, and the kernels
/// that generate_kernels.py makes. Blocks of queries times blocks of keys or columns, each with a lock.
std::int64_t efficient_workspace(int capability, bool narrow, const AttentionShape& s) {
  constexpr std::int64_t kKeys = 64, kLock_bytes = 16, kFloat_bytes = 4;
  const bool large_blocks = s.head_size > 64 && (narrow || (capability >= 80 && !is_small_generation(capability)));
  const std::int64_t queries = large_blocks ? 128 : 64;
  auto bytes =
      ceil_div(s.query_length, queries) * ceil_div(s.head_size, kKeys) * (kLock_bytes + queries * kKeys * kFloat_bytes);
  if (narrow && s.head_size > 128) {
    // Sums for keys and values too, one for each split of the keys; this is the maximum number of splits.
    const auto parts = std::min(ceil_div(s.query_length, kKeys), std::max<std::int64_t>(1, 256 / (s.rows * s.heads)));
    bytes += 2 * parts * kKeys * round_up(s.head_size, kKeys) * kFloat_bytes;
  }
  return bytes;
}

Gradients efficient_backward(const GpuSpec& gpu, const at::Tensor& qkv, const AttentionShape& s) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto row_sums = [&] { return at::empty({s.rows, s.heads, s.query_length}, float_like(qkv)); };
  at::Tensor delta;
  if (qkv.element_size() == 2) {
    delta = row_sums();  // by the kernel
  } else {
    const auto products = rows_of(qkv, s, s.heads), sums = row_sums();
    delta = row_sums();
  }
  const auto workspace =
      at::empty({s.rows * s.heads * efficient_workspace(gpu.compute_capability, qkv.element_size() == 2, s)},
                qkv.options().dtype(at::kByte));
  return grads;
}

/// Block sizes of queries and keys in ATen's CPU kernels.
std::int64_t cpu_query_rows(std::int64_t length) {
  return std::min<std::int64_t>(length, length >= 768 ? 256 : (length >= 192 ? 64 : 32));
}
std::int64_t cpu_key_rows(std::int64_t length) { return std::min<std::int64_t>(length, 512); }

at::Tensor cpu_forward(const at::Tensor& qkv, const AttentionShape& s, std::int64_t threads, at::Tensor& logsumexp) {
  const auto k = repeated(qkv, s), v = repeated(qkv, s);
  const bool narrow = qkv.element_size() == 2;
  auto out = rows_of(qkv, s, s.heads);
  logsumexp = at::empty({s.rows, s.query_length, s.heads}, float_like(qkv));
  const auto q_rows = cpu_query_rows(s.query_length), k_rows = cpu_key_rows(s.query_length);
  const auto buffer = at::empty({threads, q_rows * (k_rows + 2 + s.head_size)}, float_like(qkv));
  const auto reduced = at::empty({threads, q_rows, narrow ? k_rows : 0}, qkv.options());
  return out;
}

/// Temporary memory of the largest product in the backward, in which each thread multiplies blocks by itself.
std::int64_t cpu_backward_blocks(const at::Tensor& qkv, const AttentionShape& s, int threads) {
  const auto q_rows = cpu_query_rows(s.query_length), k_rows = cpu_key_rows(s.query_length);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return at::empty({rows, columns}, qkv.options());
  };
  const MemoryScope scope(MemoryCategory::workspace);
  const ProductKind kind{false, false, threads};
  const auto heads = qkv.narrow(1, 0, s.head_size);
  const auto queries = heads.narrow(0, 0, q_rows), keys = heads.narrow(0, 0, k_rows);
  const auto scores = matrix(q_rows, k_rows);
  return std::max({product_block_bytes(scores, queries, keys.t(), kind),
                   product_block_bytes(matrix(q_rows, s.head_size), scores, keys, kind),
                   product_block_bytes(matrix(k_rows, s.head_size), scores.t(), queries, kind)});
}

Gradients cpu_backward(const at::Tensor& qkv, const AttentionShape& s, int threads) {
  const bool narrow = qkv.element_size() == 2;
  const auto rows = cpu_query_rows(s.query_length) * cpu_key_rows(s.query_length);
  const auto blocks_bytes = cpu_backward_blocks(qkv, s, threads);
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto sums = at::empty({threads, cpu_query_rows(s.query_length)}, float_like(qkv));
  const auto blocks = at::empty({blocks_bytes}, qkv.options().dtype(at::kByte));
  const auto buffer = at::empty({threads, 2 * rows}, float_like(qkv));
  const auto reduced = at::empty({threads, narrow ? 2 * rows : 0}, qkv.options());
  return grads;
}

}  // namespace

// The kernels write [B, L, H, D]: merging the heads is a view.
at::Tensor allocate_gpu_attention(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                  const AttentionShape& s, bool keep, AttentionState& kept) {
  at::Tensor out;
  switch (kernel) {
    case GpuAttention::cudnn:
      out = cudnn_forward(qkv_NC, s, keep, kept);
      break;
    case GpuAttention::flash:
      out = flash_forward(gpu, qkv_NC, s, kept);
      break;
    case GpuAttention::memory_efficient:
      out = efficient_forward(qkv_NC, s, keep, kept.log_sums);
      break;
    case GpuAttention::blocks:
    case GpuAttention::formula:
      throw std::logic_error("what DeviceOps do runs as it is");
  }
  return out.view({s.rows * s.query_length, s.heads * s.head_size});
}

at::Tensor allocate_gpu_attention_backward(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                           const AttentionShape& s, std::unique_ptr<AttentionState> state) {
  Gradients parts;  // freed when they have been packed
  switch (kernel) {
    case GpuAttention::cudnn:
      parts = cudnn_backward(qkv_NC, s);
      break;
    case GpuAttention::flash:
      parts = flash_backward(qkv_NC, s);
      break;
    case GpuAttention::memory_efficient:
      parts = efficient_backward(gpu, qkv_NC, s);
      break;
    case GpuAttention::blocks:
    case GpuAttention::formula:
      throw std::logic_error("what DeviceOps do runs as it is");
  }
  state.reset();
  return at::empty_like(qkv_NC);
}

// mha_varlen_fwd and mha_varlen_bwd of flash_api.cpp: sums are padded by 128 tokens for each document.
at::Tensor allocate_packed_flash(const at::Tensor& qkv_NC, const AttentionShape& s, AttentionState& kept) {
  auto out = rows_of(qkv_NC, s, s.heads);
  kept.log_sums = at::empty({s.heads, s.rows * s.query_length}, float_like(qkv_NC));
  keep_random_state(qkv_NC, 16, kept);
  return out.view({s.rows * s.query_length, s.heads * s.head_size});
}

at::Tensor allocate_packed_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& s,
                                          std::unique_ptr<AttentionState> state) {
  const auto room = s.rows * s.query_length + 128 * (s.packing->starts.size(0) - 1);
  const auto width = round_up(round_up(s.head_size, 8), s.head_size <= 128 ? 32 : 64);
  Gradients grads{rows_of(qkv_NC, s, s.heads), rows_of(qkv_NC, s, s.key_heads()), rows_of(qkv_NC, s, s.key_heads())};
  {
    const auto softmax_d = at::empty({s.heads, room}, float_like(qkv_NC));
    const auto q_sums = at::empty({room, s.heads, width}, float_like(qkv_NC));
    const auto k_expanded = repeated(qkv_NC, s), v_expanded = repeated(qkv_NC, s);
  }
  state.reset();
  return at::empty_like(qkv_NC);
}

at::Tensor allocate_cpu_flash(const at::Tensor& qkv_NC, const AttentionShape& s, int threads, at::Tensor& logsumexp) {
  return cpu_forward(qkv_NC, s, threads, logsumexp).view({s.rows * s.query_length, s.heads * s.head_size});
}

at::Tensor allocate_cpu_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& s, int threads) {
  auto grad_qkv = at::empty_like(qkv_NC);
  const auto k = repeated(qkv_NC, s), v = repeated(qkv_NC, s);
  cpu_backward(qkv_NC, s, threads);
  return grad_qkv;
}

}  // namespace fsdp
