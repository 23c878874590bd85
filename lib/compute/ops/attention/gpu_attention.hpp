#pragma once
// Selection of the attention kernel on a GPU, by shape. Training and the memory prediction share it.
#include <ATen/core/Tensor.h>

#include <optional>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

enum class GpuAttention {
  cudnn,
  flash,  ///< supports windows
  memory_efficient,
  blocks,  ///< DeviceOps::row_attention(): blocked products and our kernel; `formula` if there are no kernels
  formula  ///< DeviceOps::row_attention(): all scores at once; used with dropout, whose masks the host computes
};

struct GpuAttentionTraits {
  int compute_capability = 0;              ///< 10 * major + minor
  bool has_cudnn = true;                   ///< cuDNN newer than 9.15, which PyTorch prefers on Hopper
  std::optional<GpuAttention> asked = {};  ///< serves all shapes that it supports
};

/// The environment variable FSDP_CUDA_ATTENTION: cudnn, flash, efficient or blocks, for comparisons.
/// \throws RequestError for other words
std::optional<GpuAttention> asked_gpu_attention();

/// True for GPUs with less shared memory than the first of their generation: 8.6 to 8.9 and 12.x.
bool is_small_generation(int compute_capability);

/// Chooses as sdp_utils.cpp of PyTorch 2.11, with two exceptions. cuDNN builds a plan for every length (pytorch
/// #155958: up to seconds), so it serves only lengths that are multiples of 64, as those of packed rows are. Heads
/// whose size is not a multiple of 8 are not padded for flash. Capped scores, and shapes that no kernel supports, use
/// `blocks`.
GpuAttention choose_gpu_attention(const GpuAttentionTraits& gpu, const AttentionShape& shape, at::ScalarType dtype);

/// Dtype of blocked attention: float32 where cuBLAS cannot multiply bfloat16 into float32.
at::ScalarType gpu_block_type(const GpuAttentionTraits& gpu, at::ScalarType dtype);

/// True if one variable-length flash kernel serves all packed documents; otherwise each document is computed on its
/// own, by the kernel for its length. \pre shape.packing
bool packs_by_flash(const GpuAttentionTraits& gpu, const AttentionShape& shape, at::ScalarType dtype);

}  // namespace fsdp
