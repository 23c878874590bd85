#pragma once
// Recorded work as CUDA graphs.
#include <c10/core/Device.h>

#include <memory>

#include "lib/compute/ops/place.hpp"

namespace fsdp {

/// \param device  whose recordings these are; one thread at a time
std::unique_ptr<WorkRecorder> make_cuda_recorder(c10::DeviceIndex device);

}  // namespace fsdp
