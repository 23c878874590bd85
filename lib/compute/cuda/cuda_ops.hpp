#pragma once
// Operations on a GPU. Attention by PyTorch's fused kernels, forward and backward named and chosen by shape
// (lib/compute/ops/gpu_attention.hpp); passes between products by kernels of our own (lib/compute/cuda/kernels), where
// there was an nvcc; products by cuBLAS, everything else by plain operators.
#include <memory>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// \param compute_capability  10 * major + minor
/// \param wait  how the host waits for what it reads
std::unique_ptr<Ops> make_cuda_ops(int device, int compute_capability, detail::EventWait wait);

}  // namespace fsdp
