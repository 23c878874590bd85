#pragma once
// What ATen's operators allocate, by shape alone, where they have no meta kernel or where a device's kernel needs room
// of its own. Internal to lib/model; called only while a MemoryRecorder lives.
#include <ATen/core/Tensor.h>

#include "lib/model/attention.hpp"
#include "lib/model/ops.hpp"

namespace fsdp::detail {

/// Attention of long rows on the CPU (ATen's flash kernel), or any on a GPU.
at::Tensor simulated_attention(const at::Tensor& qkv_N3D, const AttentionShape& shape, bool keep_for_backward,
                               AttentionSaved& saved);
at::Tensor simulated_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_N3D,
                                        const AttentionShape& shape, AttentionSaved& saved);

}  // namespace fsdp::detail

namespace fsdp::ops::detail {

at::Tensor simulated_embed(const at::Tensor& token_VD, bool positions, std::int64_t tokens);
/// Fills out, mean and rstd of a result whose sum_ND is there.
void simulated_layer_norm(NormResult& result);
at::Tensor simulated_layer_norm_backward(const at::Tensor& x_ND, const NormGrads& grads, const NormAgain* again);
void simulated_dropout(const at::Tensor& x_ND);

}  // namespace fsdp::ops::detail
