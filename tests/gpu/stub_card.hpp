#pragma once
// The card of the stub driver: its name, its properties, and the state of its memory.
//
// The stub driver replaces NVIDIA's driver, its runtime and cuBLAS: PyTorch's own operators and its own caching
// allocator run on it, on a machine without a GPU. Kernels do nothing, memory is inaccessible addresses, and copies to
// the host give zeros. It therefore shows exactly which memory these operators and this allocator request from the
// driver, in order. It cannot show the memory of a CUDA context and of NCCL, nor the workspaces that the real cuBLAS
// and cuDNN choose for a card.
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace stub {

/// Selected by FSDP_STUB_GPU: "t4", "a10", "l4", "a100-40g", "a100-80g" (the default), "h100", "b200".
struct Card {
  std::string name;
  int major = 8, minor = 0;
  int multiprocessors = 108;
  std::size_t shared_bytes_per_block = 0;  ///< the maximum after a kernel's opt-in
  int threads_per_multiprocessor = 2048;
  std::size_t total_bytes = 0;    ///< FSDP_STUB_TOTAL overrides the card's
  std::size_t outside_bytes = 0;  ///< used by others: FSDP_STUB_OUTSIDE, by default 0
};

/// The card's memory. Addresses are handed out in ascending order and never reused, as the allocator's model assumes.
class Memory {
 public:
  explicit Memory(const Card& card);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// \return null when the card is full
  void* allocate(std::size_t bytes);
  /// \return false for an address that was not handed out
  bool free(void* address);
  bool contains(const void* address) const;
  /// True if all bytes lie in one allocation.
  bool holds(const void* address, std::size_t bytes);
  std::size_t free_bytes();

 private:
  std::mutex mutex_;
  std::byte* base_;
  std::size_t next_ = 0;  ///< offset from base_
  std::size_t capacity_bytes_;
  std::size_t used_bytes_ = 0;
  std::map<const void*, std::size_t> blocks_;
};

const Card& card();
Memory& memory();

}  // namespace stub
