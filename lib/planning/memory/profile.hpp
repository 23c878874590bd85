#pragma once
// Evaluates a log of allocations: the peak, its composition by category, and the phase in which it occurs.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"
#include "lib/planning/memory/caching_allocator.hpp"

namespace fsdp {

/// Bytes indexed by MemoryCategory.
using MemoryBytes = std::array<std::int64_t, kNumMemoryCategories>;

/// A named phase of a step, such as "backward block 31".
struct MemoryPhase {
  std::string name;
  MemoryBytes at_peak{};  ///< composition at the moment of this phase's highest total
  std::int64_t peak_bytes = 0;
};

struct MemoryProfile {
  std::int64_t peak_bytes = 0;  ///< bytes of tensors
  MemoryBytes at_peak{};  ///< adds up to peak_bytes; activations that only the peak's phase uses count as workspace
  std::string phase;      ///< phase in which the peak occurs, e.g. "backward block 31"
  int step = 0;           ///< step in which the peak occurs, counted from 1; 0: before the first step
  std::int64_t steady_bytes = 0;      ///< bytes that remain at the end: parameters, gradients, optimizer state
  std::int64_t host_bytes = 0;        ///< peak of the host tensors recorded beside a GPU
  std::vector<MemoryPhase> timeline;  ///< phases of the last step
};

/// \param first_phase  index of each step's first phase, as MemoryLog::phases counts them
MemoryProfile profile_memory(const MemoryLog& log, const std::vector<std::int32_t>& first_phases);

/// Replays the log on a model of the caching allocator of a GPU that has `capacity_bytes` free.
CachingAllocatorStats simulate_caching_allocator(const MemoryLog& log, std::int64_t capacity_bytes);

}  // namespace fsdp
