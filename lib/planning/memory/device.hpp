#pragma once
// GPUs that are not there, or alone, as back ends: their collectives allocate what NCCL's do
// (lib/engine/collectives/nccl/nccl_collectives.cpp).
#include <memory>
#include <optional>

#include "lib/base/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// A device that is not there, for a runtime whose memory is written on `tape`.
/// \param gpu      none: the host
/// \param work     where its operations and transfers are written down
/// \param threads  of a rank on the host
DeviceChoice make_meta_device(const std::optional<GpuSpec>& gpu, const std::shared_ptr<MemoryTape>& tape,
                              const std::shared_ptr<WorkLog>& work, int threads);

/// A real GPU whose rank is alone among ranks that are not there: its collectives allocate and send nothing.
std::shared_ptr<DeviceBackend> make_lone_backend(std::shared_ptr<DeviceBackend> gpu);

}  // namespace fsdp
