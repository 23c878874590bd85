#pragma once
// Memory that attention allocates inside ATen, by shape: forward and backward on meta tensors that a MemoryRecorder
// records.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/ops/attention/gpu_attention.hpp"
#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// PyTorch's fused kernels. \pre kernel is cudnn, flash or memory_efficient; DeviceOps runs on meta tensors unchanged
at::Tensor allocate_gpu_attention(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                  const AttentionShape& shape, bool keep, AttentionState& kept);
/// \param state  freed before the gradients are packed, here and in the functions below
at::Tensor allocate_gpu_attention_backward(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                           const AttentionShape& shape, std::unique_ptr<AttentionState> state);

/// Variable-length flash attention of packed documents.
at::Tensor allocate_packed_flash(const at::Tensor& qkv_NC, const AttentionShape& shape, AttentionState& kept);
at::Tensor allocate_packed_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                          std::unique_ptr<AttentionState> state);

/// ATen's flash attention on the CPU, for long rows.
at::Tensor allocate_cpu_flash(const at::Tensor& qkv_NC, const AttentionShape& shape, int threads,
                              at::Tensor& logsumexp);
at::Tensor allocate_cpu_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& shape, int threads);

}  // namespace fsdp
