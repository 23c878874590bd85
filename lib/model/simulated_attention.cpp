// What attention allocates inside ATen, by shape.
//
// Sources, PyTorch 2.11: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp (cpu_flash_attention and its backward);
// native/transformers/cuda/sdp_utils.cpp (the choice among kernels); flash_attn/flash_api.cpp (mha_fwd, mha_bwd);
// attention.cu and attention_backward.cu with mem_eff_attention/kernel_backward.h (workspace_size);
// native/cudnn/MHA.cpp; native/transformers/attention.cpp (the formula that is left when no fused kernel takes the
// inputs). Order and sizes are those that tests/gpu/memprobe_gpu_test.py sees.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "lib/model/simulated_ops.hpp"
#include "lib/tensor/gemm_scratch.hpp"
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

/// Once for each head of queries, where heads share keys.
at::Tensor repeated(const at::Tensor& qkv, const AttentionShape& s) {
  return s.group() > 1 ? rows_of(qkv, s, s.heads) : at::Tensor();
}

enum class Kernel { cpu, cudnn, flash, memory_efficient, formula };

/// Cards of a generation with less shared memory than its first: 8.6 to 8.9 and 12.x.
bool is_small_generation(int capability) { return (capability > 80 && capability < 90) || capability >= 120; }

/// What CUTLASS's products ask of a head's size: sdp_utils.cpp, minimum_gemm_alignment.
std::int64_t head_alignment(bool narrow) {
  const bool ampere = simulated_traits().compute_capability >= 80;
  return narrow ? 8 : (ampere ? 4 : 1);
}

/// scaled_dot_product_attention's choice on CUDA: sdp_utils.cpp.
Kernel choose(const at::Tensor& qkv, const AttentionShape& s) {
  if (!simulating_cuda()) return Kernel::cpu;
  if (s.dropout > 0) return Kernel::formula;  // ours, with a mask made on the host
  const bool narrow = qkv.element_size() == 2;
  const int capability = simulated_traits().compute_capability;
  // Hopper and the data-center Blackwells prefer cuDNN when it is newer than 9.15: check_prefer_cudnn_attention.
  const bool prefers_cudnn = capability >= 90 && capability < 110;
  if (narrow && prefers_cudnn && s.head_size <= 128 && s.head_size % 8 == 0 && s.length > 1) return Kernel::cudnn;
  const bool backward_missing = is_small_generation(capability) && s.head_size > 192 && s.head_size <= 224;
  if (narrow && capability >= 80 && s.head_size <= 256 && !backward_missing) return Kernel::flash;
  if (s.group() > 1 || s.head_size % head_alignment(narrow) != 0) return Kernel::formula;
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
  const auto k_expanded = repeated(qkv, s), v_expanded = repeated(qkv, s);
  return grads;
}

/// Of what cuDNN's engine itself may take nothing is known; its frontend asks for the sums of the queries' gradients.
at::Tensor cudnn_forward(const at::Tensor& qkv, const AttentionShape& s, bool keep, at::Tensor& logsumexp) {
  auto out = rows_of(qkv, s, s.heads);
  if (keep) logsumexp = at::empty({s.rows, s.heads, s.length}, float_like(qkv));
  return out;
}

Gradients cudnn_backward(const at::Tensor& qkv, const AttentionShape& s) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.key_heads()), rows_of(qkv, s, s.key_heads())};
  const auto workspace = at::empty({s.rows * s.heads * s.length * (s.head_size + 1)}, float_like(qkv));
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

/// Bytes that the backward kernel needs for a head of a sequence: kernel_backward.h, workspace_size, and the kernels
/// that generate_kernels.py makes. Blocks of queries times blocks of keys or columns, each with a lock.
std::int64_t efficient_workspace(bool narrow, const AttentionShape& s) {
  const int capability = simulated_traits().compute_capability;
  constexpr std::int64_t kKeys = 64, kLock_bytes = 16, kFloat_bytes = 4;
  const bool large_blocks = s.head_size > 64 && (narrow || (capability >= 80 && !is_small_generation(capability)));
  const std::int64_t queries = large_blocks ? 128 : 64;
  auto bytes =
      ceil_div(s.length, queries) * ceil_div(s.head_size, kKeys) * (kLock_bytes + queries * kKeys * kFloat_bytes);
  if (narrow && s.head_size > 128) {
    // Sums for keys and values, too, once for each part into which the keys are dealt out: at most so many.
    const auto parts = std::min(ceil_div(s.length, kKeys), std::max<std::int64_t>(1, 256 / (s.rows * s.heads)));
    bytes += 2 * parts * kKeys * round_up(s.head_size, kKeys) * kFloat_bytes;
  }
  return bytes;
}

Gradients efficient_backward(const at::Tensor& qkv, const AttentionShape& s) {
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto row_sums = [&] { return at::empty({s.rows, s.heads, s.length}, float_like(qkv)); };
  at::Tensor delta;
  if (qkv.element_size() == 2) {
    delta = row_sums();  // by the kernel
  } else {
    const auto products = rows_of(qkv, s, s.heads), sums = row_sums();
    delta = row_sums();
  }
  const auto workspace =
      at::empty({s.rows * s.heads * efficient_workspace(qkv.element_size() == 2, s)}, qkv.options().dtype(at::kByte));
  return grads;
}

/// Softmax over the last dimension. SoftMax.cu, softmax_backward_cuda_out: the gradient's kernel reads a product of its
/// inputs that is made first.
struct Softmax : torch::autograd::Function<Softmax> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& scores, bool safe) {
    auto probs = at::empty_like(scores);
    if (safe) {
      const auto masked = at::empty(scores.sizes(), scores.options().dtype(at::kBool));
      const auto masked_rows = at::empty({scores.numel() / scores.size(-1)}, masked.options());
    }
    context->save_for_backward({probs});
    return probs;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    auto grad_scores = at::empty_like(grads[0]);
    const auto products = at::empty_like(grads[0]);
    return {grad_scores, at::Tensor()};
  }
};

/// What is added to scores: made of a mask of truth values.
at::Tensor causal_mask(const at::Tensor& like, std::int64_t length) {
  auto lower = at::empty({length, length}, like.options().dtype(at::kBool));
  lower = lower.tril();
  return at::empty({length, length}, like.options());
}

/// Rows of queries that ATen's CPU kernels take at once, and of keys.
std::int64_t cpu_query_rows(std::int64_t length) {
  return std::min<std::int64_t>(length, length >= 768 ? 256 : (length >= 192 ? 64 : 32));
}
std::int64_t cpu_key_rows(std::int64_t length) { return std::min<std::int64_t>(length, 512); }

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

/// Each thread of the backward multiplies blocks of queries and keys by itself: the room of its largest product.
std::int64_t cpu_backward_blocks(const at::Tensor& qkv, const AttentionShape& s) {
  const auto q_rows = cpu_query_rows(s.length), k_rows = cpu_key_rows(s.length);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return at::empty({rows, columns}, qkv.options());
  };
  const MemoryScope scope(MemoryCategory::workspace);
  const auto heads = qkv.narrow(1, 0, s.head_size);
  const auto queries = heads.narrow(0, 0, q_rows), keys = heads.narrow(0, 0, k_rows);
  const auto scores = matrix(q_rows, k_rows);
  return std::max({product_block_bytes(scores, queries, keys.t(), {}),
                   product_block_bytes(matrix(q_rows, s.head_size), scores, keys, {}),
                   product_block_bytes(matrix(k_rows, s.head_size), scores.t(), queries, {})});
}

Gradients cpu_backward(const at::Tensor& qkv, const AttentionShape& s) {
  const bool narrow = qkv.element_size() == 2;
  const auto rows = cpu_query_rows(s.length) * cpu_key_rows(s.length);
  const std::int64_t threads = simulated_traits().threads;
  const auto blocks_bytes = cpu_backward_blocks(qkv, s);
  Gradients grads{rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads), rows_of(qkv, s, s.heads)};
  const auto sums = at::empty({threads, cpu_query_rows(s.length)}, float_like(qkv));
  const auto blocks = at::empty({blocks_bytes}, qkv.options().dtype(at::kByte));
  const auto buffer = at::empty({threads, 2 * rows}, float_like(qkv));
  const auto reduced = at::empty({threads, narrow ? 2 * rows : 0}, qkv.options());
  return grads;
}

}  // namespace

at::Tensor simulated_softmax(const at::Tensor& scores, bool safe) { return Softmax::apply(scores, safe); }

at::Tensor simulated_plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionShape& shape) {
  at::Tensor second_result;  // the probabilities, dropped at the very end
  const auto type = q.scalar_type();
  const auto wide_q = q.to(at::kFloat), wide_k = k.to(at::kFloat), wide_v = v.to(at::kFloat);
  const double scale = 1.0;  // any: nothing is computed
  const auto queries = wide_q * scale;
  const auto mask = causal_mask(queries, shape.length);
  const auto expanded = [&](const at::Tensor& x) {
    return shape.group() == 1 ? x : x.repeat_interleave(shape.group(), -3);
  };
  const auto keys = expanded(wide_k), values = expanded(wide_v);
  auto probs = at::matmul(queries, keys.transpose(-2, -1) * scale);
  probs.add_(mask);
  probs = simulated_softmax(probs, true);
  second_result = probs.to(type);
  return at::matmul(probs, values).to(type);
}

bool has_simulated_kernel(const at::Tensor& qkv_N3D, const AttentionShape& shape) {
  return choose(qkv_N3D, shape) != Kernel::formula;
}

at::Tensor simulated_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                               AttentionSaved& saved) {
  at::Tensor out, logsumexp;
  switch (choose(qkv_N3D, shape)) {
    case Kernel::cpu:
      out = cpu_forward(qkv_N3D, shape, logsumexp);
      break;
    case Kernel::cudnn:
      out = cudnn_forward(qkv_N3D, shape, keep_for_backward, logsumexp);
      break;
    case Kernel::flash:
      out = flash_forward(qkv_N3D, shape, logsumexp);
      break;
    case Kernel::memory_efficient:
      out = efficient_forward(qkv_N3D, shape, keep_for_backward, logsumexp);
      break;
    case Kernel::formula:
      throw std::logic_error("plain operators run as they are");
  }
  if (keep_for_backward) {
    saved.logsumexp = logsumexp;
    saved.graph_out = out;
  }
  // The kernels write [B, L, H, D]: merging the heads is a view.
  return out.view({shape.rows * shape.length, shape.heads * shape.head_size});
}

at::Tensor simulated_attention_backward(const at::Tensor& qkv_N3D, const AttentionShape& shape, AttentionSaved& saved) {
  auto grad_qkv = at::empty_like(qkv_N3D);
  {
    Gradients grads;
    switch (choose(qkv_N3D, shape)) {
      case Kernel::cpu: {
        const auto k = repeated(qkv_N3D, shape), v = repeated(qkv_N3D, shape);
        grads = cpu_backward(qkv_N3D, shape);
        break;
      }
      case Kernel::cudnn:
        grads = cudnn_backward(qkv_N3D, shape);
        break;
      case Kernel::flash:
        grads = flash_backward(qkv_N3D, shape);
        break;
      case Kernel::memory_efficient:
        grads = efficient_backward(qkv_N3D, shape);
        break;
      case Kernel::formula:
        throw std::logic_error("plain operators run as they are");
    }
    saved.logsumexp.reset();  // autograd lets go of it first
  }
  saved = {};
  return grad_qkv;
}

}  // namespace fsdp::detail
