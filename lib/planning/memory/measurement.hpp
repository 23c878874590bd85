#pragma once
// Measures the memory of real training steps on the available ranks, from the allocators' own counters.
#include <cstdint>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/planning/memory/prediction.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct MemoryMeasurement {
  std::int64_t peak_bytes = 0;           ///< bytes of tensors; maximum over ranks
  std::int64_t reserved_peak_bytes = 0;  ///< bytes of the GPU allocator's segments
  std::int64_t total_bytes = 0;          ///< memory of the GPU
  std::int64_t alloc_retries = 0;
  std::int64_t ooms = 0;
  std::int64_t rss_bytes = 0;  ///< largest resident set of any rank, libraries included
  double step_seconds = 0;     ///< of the last step
};

/// Runs three steps of the job on random tokens from freshly made weights. Collective.
/// install_host_allocator() must have been called before the first tensor.
MemoryMeasurement measure_memory(ProcessGroup& world, const MemoryRequest& request, const DeviceChoice& device);

}  // namespace fsdp
