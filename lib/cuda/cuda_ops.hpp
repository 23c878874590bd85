#pragma once
// Operations on a GPU. Attention by PyTorch's fused kernels, forward and backward named and chosen by shape
// (lib/ops/gpu_attention.hpp); weights of 4 bits by a kernel of our own (lib/cuda/kernels), where there was an nvcc;
// all others by plain operators for now.
#include <memory>

#include "lib/ops/ops.hpp"

namespace fsdp {

/// \param compute_capability  10 * major + minor
std::unique_ptr<Ops> make_cuda_ops(int device, int compute_capability);

}  // namespace fsdp
