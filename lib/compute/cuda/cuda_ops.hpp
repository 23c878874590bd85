#pragma once
// Operations on a GPU: attention by PyTorch's fused kernels, chosen by shape
// (lib/compute/ops/attention/gpu_attention.hpp); products by cuBLAS; other operations by our kernels
// (lib/compute/cuda/kernels) or, without nvcc, by plain operators.
#include <cstdint>
#include <memory>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// \param compute_capability  10 * major + minor
/// \param total_bytes  memory of the device
/// \param wait  blocks the host until an event is reached
std::unique_ptr<Ops> make_cuda_ops(int device, int compute_capability, std::int64_t total_bytes,
                                   detail::EventWait wait);

}  // namespace fsdp
