#pragma once
// Device back ends for predictions: GPUs that do not exist, and a real GPU without peers. Their collectives allocate
// the same buffers as NCCL's do (lib/engine/collectives/nccl/nccl_collectives.cpp).
#include <memory>
#include <optional>

#include "lib/base/types/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Makes a simulated device for a runtime whose allocations are recorded on `tape`.
/// \param gpu      the simulated GPU; none: a host
/// \param work     log that receives its operations and transfers
/// \param threads  threads per rank on a host
DeviceChoice make_meta_device(const std::optional<GpuSpec>& gpu, const std::shared_ptr<MemoryTape>& tape,
                              const std::shared_ptr<WorkLog>& work, int threads);

/// Wraps a real GPU for a single rank of a simulated group: collectives allocate their buffers but transfer nothing.
std::shared_ptr<DeviceBackend> make_lone_backend(std::shared_ptr<DeviceBackend> gpu);

}  // namespace fsdp
