#pragma once
// What ATen's operators allocate, by shape alone, where they have no meta kernel or where a device's kernel needs room
// of its own. Internal to lib/model; called only while a MemoryRecorder lives.
#include <ATen/core/Tensor.h>

#include "lib/model/attention.hpp"
#include "lib/model/ops.hpp"

namespace fsdp::detail {

/// True where a fused kernel does it, whose memory is known by shape alone: always on the CPU. Elsewhere plain
/// operators run on meta tensors.
bool has_simulated_kernel(const at::Tensor& qkv_N3D, const AttentionShape& shape);
/// Attention of long rows on the CPU (ATen's flash kernel), or by a GPU's fused kernels.
/// \pre has_simulated_kernel()
at::Tensor simulated_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                               AttentionSaved& saved);
/// scaled_dot_product_attention on a GPU without a fused kernel for the inputs, under autograd: [B, H, L, head_size].
at::Tensor simulated_plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionShape& shape);
/// \param safe  ATen's _safe_softmax, which looks for rows without a value
at::Tensor simulated_softmax(const at::Tensor& scores, bool safe);
at::Tensor simulated_attention_backward(const at::Tensor& qkv_N3D, const AttentionShape& shape, AttentionSaved& saved);

}  // namespace fsdp::detail

namespace fsdp::ops::detail {

at::Tensor simulated_embed(const at::Tensor& token_VD, bool positions, std::int64_t tokens);
/// Fills out, mean and rstd of a result whose sum_ND is there.
void simulated_layer_norm(NormResult& result);
at::Tensor simulated_layer_norm_backward(const at::Tensor& x_ND, const NormGrads& grads, const NormAgain* again);
void simulated_dropout(const at::Tensor& x_ND);
/// log_softmax of the rows, in float32.
at::Tensor simulated_log_softmax(const at::Tensor& x_NV);

/// Sums over rows in float32, by ATen's operator or, in a simulated run, with the memory that it takes on a GPU.
at::Tensor column_sums(const at::Tensor& x_ND);

}  // namespace fsdp::ops::detail
