#include "lib/compute/tensor/host_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>

namespace fsdp {
namespace {

constexpr std::size_t kHugePage_bytes = std::size_t{2} << 20;
constexpr std::size_t kSegment_bytes = std::size_t{64} << 20;
constexpr std::size_t kLarge_bytes = std::size_t{1} << 20;
constexpr std::size_t kHeader_bytes = 64;  // keeps data aligned to a cache line, for oneDNN and MKL
constexpr std::size_t kGranule_bytes = 4096;
constexpr std::size_t kMinSplit_bytes = std::size_t{256} << 10;

std::size_t round_up(std::size_t n, std::size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Block;

/// Directly precedes the caller's data.
struct Header {
  Block* block;  ///< null: the block came from malloc
  std::size_t requested_bytes;
};
static_assert(sizeof(Header) <= kHeader_bytes);

/// A piece of a segment, header included. Pieces of one segment form a list in address order.
struct Block {
  std::byte* begin;
  std::size_t size_bytes;
  bool free;
  Block* previous;
  Block* next;
  std::multimap<std::size_t, Block*>::iterator position;  ///< valid while free
};

/// Exception that ends the body of first_host_request().
struct FirstRequest {
  std::size_t size_bytes;
};
thread_local bool ends_at_first_request = false;

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    if (ends_at_first_request) throw FirstRequest{n};
    void* data = n == 0 ? nullptr : take(n);
    // oneDNN uses raw_allocate, which needs the context to be the data pointer itself.
    return {data, data, &HostAllocator::give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &HostAllocator::give_back; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }

  HostMemoryStats stats() const { return {current_.load(), peak_.load(), reserved_.load(), allocations_.load()}; }
  void reset_peak() { peak_ = current_.load(); }

  void count(std::int64_t bytes) {
    const auto now = current_.fetch_add(bytes) + bytes;
    auto seen = peak_.load();
    while (now > seen && !peak_.compare_exchange_weak(seen, now)) {
    }
  }

  static HostAllocator& instance() {
    static auto* const allocator = new HostAllocator;  // never destroyed: tensors may outlive static destruction
    return *allocator;
  }

 private:
  void* take(std::size_t n) {
    ++allocations_;
    Header header{nullptr, n};
    std::byte* begin = nullptr;
    if (n < kLarge_bytes) {
      begin = static_cast<std::byte*>(std::aligned_alloc(kHeader_bytes, round_up(n + kHeader_bytes, kHeader_bytes)));
      if (begin == nullptr) throw std::bad_alloc();
    } else {
      header.block = take_block(round_up(n + kHeader_bytes, kGranule_bytes));
      begin = header.block->begin;
    }
    std::memcpy(begin, &header, sizeof(header));
    count(static_cast<std::int64_t>(n));
    return begin + kHeader_bytes;
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    auto* begin = static_cast<std::byte*>(data) - kHeader_bytes;
    Header header{};
    std::memcpy(&header, begin, sizeof(header));
    auto& self = instance();
    self.count(-static_cast<std::int64_t>(header.requested_bytes));
    if (header.block == nullptr) {
      std::free(begin);
    } else {
      self.return_block(header.block);
    }
  }

  Block* take_block(std::size_t size_bytes) {
    const std::lock_guard lock(mutex_);
    auto it = free_.lower_bound(size_bytes);
    Block* block = it != free_.end() ? it->second : nullptr;
    if (block != nullptr) {
      free_.erase(it);
    } else {
      block = new_segment(size_bytes);
    }
    block->free = false;
    if (block->size_bytes - size_bytes >= kMinSplit_bytes) {
      auto* rest = new Block{block->begin + size_bytes, block->size_bytes - size_bytes, true, block, block->next, {}};
      if (rest->next != nullptr) rest->next->previous = rest;
      block->next = rest;
      block->size_bytes = size_bytes;
      rest->position = free_.emplace(rest->size_bytes, rest);
    }
    return block;
  }

  void return_block(Block* block) {
    const std::lock_guard lock(mutex_);
    block->free = true;
    if (Block* next = block->next; next != nullptr && next->free) {
      free_.erase(next->position);
      absorb_next(block);
    }
    if (Block* previous = block->previous; previous != nullptr && previous->free) {
      free_.erase(previous->position);
      block = previous;
      absorb_next(block);
    }
    block->position = free_.emplace(block->size_bytes, block);
  }

  static void absorb_next(Block* block) {
    Block* next = block->next;
    block->size_bytes += next->size_bytes;
    block->next = next->next;
    if (next->next != nullptr) next->next->previous = block;
    delete next;
  }

  Block* new_segment(std::size_t size_bytes) {
    const std::size_t bytes = size_bytes <= kSegment_bytes / 2 ? kSegment_bytes : round_up(size_bytes, kHugePage_bytes);
    // Mapped one huge page too long so that an aligned part can be kept.
    void* raw = ::mmap(nullptr, bytes + kHugePage_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto* start = static_cast<std::byte*>(raw);
    const std::size_t skip =
        (kHugePage_bytes - reinterpret_cast<std::uintptr_t>(raw) % kHugePage_bytes) % kHugePage_bytes;
    if (skip != 0) ::munmap(start, skip);
    if (kHugePage_bytes != skip) ::munmap(start + skip + bytes, kHugePage_bytes - skip);
    ::madvise(start + skip, bytes, MADV_HUGEPAGE);
    reserved_ += static_cast<std::int64_t>(bytes);
    return new Block{start + skip, bytes, false, nullptr, nullptr, {}};
  }

  std::mutex mutex_;
  std::multimap<std::size_t, Block*> free_;  // by size: best fit first
  std::atomic<std::int64_t> current_{0}, peak_{0}, reserved_{0}, allocations_{0};
};

}  // namespace

void install_host_allocator() {
  static const bool done = [] {
    c10::SetCPUAllocator(&HostAllocator::instance(), 100);
    return true;
  }();
  (void)done;
}

HostMemoryStats host_memory_stats() { return HostAllocator::instance().stats(); }
void reset_host_memory_peak() { HostAllocator::instance().reset_peak(); }
void count_external_host_memory(std::int64_t bytes) { HostAllocator::instance().count(bytes); }
std::optional<std::int64_t> first_host_request(const std::function<void()>& body) {
  install_host_allocator();
  std::optional<std::int64_t> bytes;
  ends_at_first_request = true;
  try {
    body();
  } catch (const FirstRequest& request) {
    bytes = static_cast<std::int64_t>(request.size_bytes);
  } catch (const std::exception&) {
    // A library without room of its own: it asked for nothing.
  }
  ends_at_first_request = false;
  return bytes;
}

}  // namespace fsdp
