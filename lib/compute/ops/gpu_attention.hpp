#pragma once
// Which of PyTorch's fused kernels for attention a GPU runs: by shape, the same for training and for memory's
// prediction.
#include <ATen/core/Tensor.h>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

enum class GpuAttention {
  cudnn,
  flash,  ///< with a window, too
  memory_efficient,
  blocks,  ///< products and a kernel of ours: FusedOps::row_attention. Without kernels by the formula
  formula  ///< all scores at once: with dropout, whose masks are the host's
};

struct GpuAttentionTraits {
  int compute_capability = 0;  ///< 10 * major + minor
  bool has_cudnn = true;       ///< newer than 9.15, whose attention PyTorch prefers on Hopper
};

/// A GPU of a generation with less shared memory than its first: 8.6 to 8.9 and 12.x.
bool is_small_generation(int compute_capability);

/// As sdp_utils.cpp of PyTorch 2.11 chooses, but for two: cuDNN plans anew for every length (pytorch #155958: up to
/// seconds), so it gets lengths that are multiples of 64 only, as packed rows have them; and heads whose size is no
/// multiple of 8 are not padded for flash. That one takes windows; what caps scores, and what none of them takes, goes
/// in blocks.
GpuAttention choose_gpu_attention(const GpuAttentionTraits& gpu, const AttentionShape& shape, at::ScalarType dtype);

/// The type that attention in blocks computes in: float32 where cuBLAS multiplies no bfloat16 into it.
at::ScalarType gpu_block_type(const GpuAttentionTraits& gpu, at::ScalarType dtype);

/// The documents that share rows go through one flash kernel, which is told where each begins; else they are attended
/// to one after the other, each by the kernel for its length. \pre shape.packing
bool packs_by_flash(const GpuAttentionTraits& gpu, const AttentionShape& shape, at::ScalarType dtype);

}  // namespace fsdp
