#pragma once
// What attention allocates inside ATen, by shape: forward and backward on meta tensors that a MemoryRecorder writes
// down.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/ops/gpu_attention.hpp"
#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// What a forward keeps for its backward.
struct KeptByAttention {
  at::Tensor logsumexp;
  at::Tensor random_state, unused;  ///< of flash and cuDNN
};

/// By PyTorch's fused kernels. \pre kernel is one of these: what FusedOps do runs on meta tensors as it is
at::Tensor allocate_gpu_attention(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                  const AttentionShape& shape, bool keep, KeptByAttention& kept);
/// \param state  freed before gradients come to lie beside each other; below, too
at::Tensor allocate_gpu_attention_backward(GpuAttention kernel, const GpuSpec& gpu, const at::Tensor& qkv_NC,
                                           const AttentionShape& shape, std::unique_ptr<AttentionState> state);

/// By flash over the documents that share rows.
at::Tensor allocate_packed_flash(const at::Tensor& qkv_NC, const AttentionShape& shape, KeptByAttention& kept);
at::Tensor allocate_packed_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                          std::unique_ptr<AttentionState> state);

/// Of long rows on the CPU, by ATen's flash kernel.
at::Tensor allocate_cpu_flash(const at::Tensor& qkv_NC, const AttentionShape& shape, int threads,
                              at::Tensor& logsumexp);
at::Tensor allocate_cpu_flash_backward(const at::Tensor& qkv_NC, const AttentionShape& shape, int threads);

}  // namespace fsdp
