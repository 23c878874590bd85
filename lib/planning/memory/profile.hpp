#pragma once
// From a log of allocations to what a person wants to know: the peak, what made it up, and when it was.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/planning/memory/caching_allocator.hpp"

namespace fsdp {

/// Bytes by MemoryCategory.
using MemoryBytes = std::array<std::int64_t, kNumMemoryCategories>;

/// One stretch of a run that has a name.
struct MemoryPhase {
  std::string name;
  MemoryBytes at_peak{};  ///< when this phase's total was highest
  std::int64_t peak_bytes = 0;
};

struct MemoryProfile {
  std::int64_t peak_bytes = 0;        ///< tensor bytes
  MemoryBytes at_peak{};              ///< adds up to peak_bytes; what only the peak's phase needs counts as workspace
  std::string phase;                  ///< of the peak, e.g. "backward block 31"
  int step = 0;                       ///< the peak's, counted from 1; 0: before the first
  std::int64_t steady_bytes = 0;      ///< at the end: parameters, gradients, optimizer
  std::int64_t host_bytes = 0;        ///< peak of what was recorded as the host's, beside a GPU
  std::vector<MemoryPhase> timeline;  ///< of the last step
};

/// \param first_phase  of each step, as MemoryLog::phases counts
MemoryProfile profile_memory(const MemoryLog& log, const std::vector<std::int32_t>& first_phases);

/// Runs the log through the caching allocator of a GPU on which `capacity_bytes` are free for it.
CachingAllocatorStats simulate_caching_allocator(const MemoryLog& log, std::int64_t capacity_bytes);

}  // namespace fsdp
