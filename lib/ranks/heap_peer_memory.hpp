#pragma once
// Peer memory of ranks that are threads of one process: an anonymous private mapping.
#include <sys/mman.h>

#include <memory>
#include <new>
#include <vector>

#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// The memory and counters shared by all threads of a group.
class HeapRegion {
 public:
  HeapRegion(std::size_t size_bytes, std::size_t num_counters)
      : size_bytes_(size_bytes / kPage_bytes * kPage_bytes + kPage_bytes),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        counters_(num_counters) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    // A huge page that the region fills in part would take its whole size in memory, and every unit has a region.
    ::madvise(data_, size_bytes_ / kHugePage_bytes * kHugePage_bytes, MADV_HUGEPAGE);
  }
  HeapRegion(const HeapRegion&) = delete;
  HeapRegion& operator=(const HeapRegion&) = delete;
  ~HeapRegion() { ::munmap(data_, size_bytes_); }

  std::byte* data() { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  SharedCounter& counter(std::size_t index) { return counters_.at(index); }

 private:
  static constexpr std::size_t kPage_bytes = 4096, kHugePage_bytes = std::size_t{2} << 20;
  std::size_t size_bytes_;
  std::byte* data_;
  std::vector<SharedCounter> counters_;
};

/// A thread's handle to the region.
class HeapPeerMemory final : public PeerMemory {
 public:
  explicit HeapPeerMemory(std::shared_ptr<HeapRegion> region) : region_(std::move(region)) {}
  std::byte* data() override { return region_->data(); }
  std::size_t size_bytes() const override { return region_->size_bytes(); }
  SharedCounter& counter(std::size_t index) override { return region_->counter(index); }
  void forget(std::size_t, std::size_t) override {}  // the threads share one page table

 private:
  std::shared_ptr<HeapRegion> region_;
};

}  // namespace fsdp::detail
