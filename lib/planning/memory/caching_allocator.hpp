#pragma once
// A model of PyTorch's CUDA caching allocator: computes how much device memory it reserves for a sequence of
// allocations and frees.
//
// Follows c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 with default settings and one stream: requests are rounded
// to 512 bytes; requests up to 1 MiB come from 2 MiB segments, requests below 10 MiB from 20 MiB segments, and larger
// ones from a segment of their own, rounded to 2 MiB. The allocator takes the smallest free block that fits and splits
// it if the remainder is large enough; adjacent free blocks merge. When the device has no memory left, the allocator
// releases all segments that are entirely free and retries; such a retry stalls the GPU for milliseconds.
#include <cstdint>
#include <memory>

namespace fsdp {

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

}  // namespace fsdp
