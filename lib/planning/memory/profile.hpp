#pragma once
// Evaluates a log of allocations: the peak, its composition by category, and the phase in which it occurs.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/device/memory_recorder.hpp"

namespace fsdp {

// A model of PyTorch's CUDA caching allocator: computes how much device memory it reserves for a sequence of
// allocations and frees.
//
// Follows c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 with default settings and one stream: requests are rounded
// to 512 bytes; requests up to 1 MiB come from 2 MiB segments, requests below 10 MiB from 20 MiB segments, and larger
// ones from a segment of their own, rounded to 2 MiB. The allocator takes the smallest free block that fits and splits
// it if the remainder is large enough; adjacent free blocks merge. When the device has no memory left, the allocator
// releases all segments that are entirely free and retries; such a retry stalls the GPU for milliseconds.

struct CachingAllocatorStats {
  std::int64_t allocated_bytes = 0;  ///< bytes of blocks in use, each rounded to 512 bytes
  std::int64_t allocated_peak_bytes = 0;
  std::int64_t reserved_bytes = 0;  ///< bytes of segments
  std::int64_t reserved_peak_bytes = 0;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;  ///< requests that failed even after a retry; the model counts them as served
};

class CachingAllocatorModel {
 public:
  /// \param capacity_bytes  upper limit for the sum of all segments
  explicit CachingAllocatorModel(std::int64_t capacity_bytes);
  CachingAllocatorModel(const CachingAllocatorModel&) = delete;
  CachingAllocatorModel& operator=(const CachingAllocatorModel&) = delete;
  ~CachingAllocatorModel();

  /// \param id  any number that is not in use
  void allocate(std::int64_t id, std::int64_t bytes);
  void free(std::int64_t id);
  /// Returns all entirely free segments to the device, like emptyCache().
  void empty_cache() { release_free_segments(); }
  /// Selects whether further requests are served from a private pool, as during the capture of a CUDA graph. Segments
  /// of the private pool are never released.
  void use_private_pool(bool yes);
  const CachingAllocatorStats& stats() const { return stats_; }

 private:
  struct Block;
  struct Pool;
  Block* take_free(Pool& pool, std::int64_t size);
  Block* new_segment(Pool& pool, std::int64_t size);
  void release_free_segments();
  static void merge(Pool& pool, Block* block, Block* neighbour);

  std::int64_t capacity_bytes_;
  CachingAllocatorStats stats_;
  struct State;
  std::unique_ptr<State> state_;
};

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
