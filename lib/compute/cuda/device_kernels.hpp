#pragma once
// The fused kernels of a CUDA device.
#include <c10/core/Device.h>

#include <memory>

#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp::detail {

/// Kernels run on the calling thread's current stream.
/// \return null if there is no code for the device, FSDP_CUDA_KERNELS=off is set, or the build had no nvcc
std::shared_ptr<const fused::Kernels> device_kernels(c10::DeviceIndex device);

}  // namespace fsdp::detail
