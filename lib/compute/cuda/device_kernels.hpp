#pragma once
// The passes of lib/compute/ops/fused_kernels.hpp on a device.
#include <c10/core/Device.h>

#include <memory>

#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp::detail {

/// On the stream that ATen's operators of the calling thread use.
/// \return null where there is no code for the device, FSDP_CUDA_KERNELS is off, or this was built without an nvcc
std::shared_ptr<const fused::Kernels> device_kernels(c10::DeviceIndex device);

}  // namespace fsdp::detail
