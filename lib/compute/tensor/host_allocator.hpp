#pragma once
// The host allocator of training runs: it caches memory and uses huge pages.
//
// glibc returns large buffers to the kernel on every free, so each step of a training loop faults all its pages in
// again (238,000 faults a step for a 16 M-parameter model). This allocator keeps segments for the life of the
// process, asks for transparent huge pages, serves requests best-fit with splitting and coalescing as the CUDA caching
// allocator does, and counts bytes so that peaks are known exactly.
#include <cstdint>
#include <functional>
#include <optional>

namespace fsdp {

struct HostMemoryStats {
  std::int64_t current_bytes = 0;   ///< tensor bytes in use, shared windows' own part included
  std::int64_t peak_bytes = 0;      ///< highest current_bytes since start or reset_host_memory_peak()
  std::int64_t reserved_bytes = 0;  ///< address space held from the kernel for large blocks
  std::int64_t allocations = 0;     ///< requests served since start
};

/// Makes ATen's CPU tensors use the allocator; call once, before the first tensor. Later calls do nothing.
void install_host_allocator();

HostMemoryStats host_memory_stats();
void reset_host_memory_peak();

/// Counts memory that ATen does not allocate (shared-memory segments); negative when it is freed.
void count_external_host_memory(std::int64_t bytes);

/// \return the size in bytes of the first host allocation of `body` on this thread, which is refused: an exception ends
/// `body` there. Empty if `body` returns or fails without an allocation
std::optional<std::int64_t> first_host_request(const std::function<void()>& body);

}  // namespace fsdp
