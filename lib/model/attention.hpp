#pragma once
// Causal self-attention on packed projections, forward and backward.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp {

/// What the backward needs besides qkv and the output.
struct AttentionSaved {
  at::Tensor probs_BHLL;                            ///< short rows on the CPU: the probabilities
  at::Tensor logsumexp;                             ///< flash attention: float32 [B, H, L]
  at::Tensor graph_q, graph_k, graph_v, graph_out;  ///< other devices: autograd's own graph over detached inputs
};

struct AttentionShape {
  std::int64_t rows;    ///< B: sequences in the micro-batch
  std::int64_t length;  ///< L: tokens per sequence
  std::int64_t heads;   ///< H
  std::int64_t head_size;
  double dropout = 0;       ///< on the probabilities; needs the short-row path
  at::Tensor dropout_keys;  ///< int64 [B]: one per sequence
  /// Heads of keys and values, each shared by heads / kv_heads heads of queries (Ainslie et al., arXiv:2305.13245);
  /// 0: heads.
  std::int64_t kv_heads = 0;

  std::int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  /// Query heads per head of keys.
  std::int64_t group() const { return heads / key_heads(); }
  /// Columns of a row of [q | k | v].
  std::int64_t packed_width() const { return (heads + 2 * key_heads()) * head_size; }
};

/// Rows of at most this many tokens use batched matrix products on the CPU (3 % faster in float32, 7-13 % in bf16 than
/// flash attention at 255 tokens); longer ones use ATen's flash kernel, which never holds L x L scores.
inline constexpr std::int64_t kShortRow = 512;

/// \param qkv_N3D  rows of [q | k | v]: [H, head_size], then twice [kv_heads, head_size]; kept by the caller for the
///                 backward
/// \return out_ND
at::Tensor causal_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                            AttentionSaved& saved);

/// \return gradient of qkv_N3D. Frees what `saved` holds.
at::Tensor causal_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D, const at::Tensor& out_ND,
                                     const AttentionShape& shape, AttentionSaved& saved);

namespace detail {

/// Forward and backward on devices without kernels of ours: ATen's operators under autograd. They work on CPUs, too.
at::Tensor device_causal_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                                   AttentionSaved& saved);
at::Tensor device_causal_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D,
                                            const AttentionShape& shape, AttentionSaved& saved);

}  // namespace detail

struct LayerCache;

/// Attention of new tokens of one sequence to all so far: keys and values of the new ones join the cache.
/// \param qkv_N3D       of the new tokens, at positions [cache_length, cache_length + N); shape.rows is 1
/// \param max_capacity  tokens that the cache will ever hold
/// \return out_ND
at::Tensor cached_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, LayerCache& cache,
                            std::int64_t cache_length, std::int64_t max_capacity);

}  // namespace fsdp
