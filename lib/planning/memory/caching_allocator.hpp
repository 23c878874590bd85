#pragma once
// PyTorch's CUDA caching allocator as arithmetic: what it takes from the device when tensors of these sizes come and
// go.
//
// Rules of c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 with its default settings, one stream: requests are
// rounded to 512 bytes; up to 1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB segments, else from a
// segment of their own, rounded to 2 MiB; the smallest free block that fits is taken and split where the rest is worth
// it; neighbours that are free merge. When the device has no more, all segments that are entirely free are given back
// and the request is made once more: a retry, which stops the GPU for milliseconds.
#include <cstdint>
#include <memory>

namespace fsdp {

struct CachingAllocatorStats {
  std::int64_t allocated_bytes = 0;  ///< in tensors, rounded to 512 bytes
  std::int64_t allocated_peak_bytes = 0;
  std::int64_t reserved_bytes = 0;  ///< in segments
  std::int64_t reserved_peak_bytes = 0;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;  ///< requests that failed even after a retry; they are counted as served
};

class CachingAllocatorModel {
 public:
  /// \param capacity_bytes  what segments may take together
  explicit CachingAllocatorModel(std::int64_t capacity_bytes);
  CachingAllocatorModel(const CachingAllocatorModel&) = delete;
  CachingAllocatorModel& operator=(const CachingAllocatorModel&) = delete;
  ~CachingAllocatorModel();

  /// \param id  any number that is not in use
  void allocate(std::int64_t id, std::int64_t bytes);
  void free(std::int64_t id);
  /// Segments that are entirely free go back to the device: emptyCache().
  void empty_cache() { release_free_segments(); }
  /// Whether requests are served from a private pool, whose segments go back with nothing but the pool itself: what a
  /// CUDA graph is captured in.
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
