#pragma once
// The card of the stub driver: what it is called, what it can do, and how much of its memory is taken.
//
// The stub driver stands where NVIDIA's driver, its runtime and cuBLAS would: PyTorch's own operators and its own
// caching allocator run on it, on a machine without a GPU. Kernels do nothing, memory is addresses that nobody may
// touch, and copies to the host give zeros. What it shows is therefore what those operators and that allocator ask the
// driver for, byte by byte and in their order. It cannot show what a CUDA context and NCCL take, nor the workspace that
// the real cuBLAS and cuDNN ask for by their own judgement of a card.
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace stub {

/// By FSDP_STUB_GPU: "t4", "a10", "l4", "a100-40g", "a100-80g" (the default), "h100", "b200".
struct Card {
  std::string name;
  int major = 8, minor = 0;
  int multiprocessors = 108;
  std::size_t shared_bytes_per_block = 0;  ///< at most, when a kernel opts in
  int threads_per_multiprocessor = 2048;
  std::size_t total_bytes = 0;    ///< FSDP_STUB_TOTAL instead of the card's
  std::size_t outside_bytes = 0;  ///< of other users: FSDP_STUB_OUTSIDE, 0 without it
};

/// Its memory. Addresses are handed out in ascending order and never again, as the model of the allocator has it.
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
  /// All of it lies in one allocation.
  bool holds(const void* address, std::size_t bytes);
  std::size_t free_bytes();

 private:
  std::mutex mutex_;
  std::byte* base_;
  std::size_t next_ = 0;  ///< from base_
  std::size_t capacity_bytes_;
  std::size_t used_bytes_ = 0;
  std::map<const void*, std::size_t> blocks_;
};

const Card& card();
Memory& memory();

}  // namespace stub
