#pragma once
// A GPU that is not there, as a back end: its collectives allocate what NCCL's do (lib/cuda/nccl_collectives.cpp).
#include <memory>

#include "lib/comm/device_backend.hpp"
#include "lib/memory/gpus.hpp"

namespace fsdp {

std::shared_ptr<DeviceBackend> make_simulated_backend(const GpuSpec& gpu);

/// A real GPU whose rank is alone among ranks that are not there: its collectives allocate and send nothing.
std::shared_ptr<DeviceBackend> make_lone_backend(std::shared_ptr<DeviceBackend> gpu);

}  // namespace fsdp
