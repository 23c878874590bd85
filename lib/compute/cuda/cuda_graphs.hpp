#pragma once
// WorkRecorder by CUDA graphs.
#include <c10/core/Device.h>

#include <memory>

#include "lib/compute/ops/device_work.hpp"

namespace fsdp {

/// \return a recorder for `device`; used by one thread at a time
std::unique_ptr<WorkRecorder> make_cuda_recorder(c10::DeviceIndex device);

}  // namespace fsdp
