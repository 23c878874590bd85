#pragma once
// The card of the stub driver: its name, its properties, and the state of its memory.
//
// The stub driver replaces NVIDIA's driver, its runtime and cuBLAS: PyTorch's own operators and its own caching
// allocator run on it, on a machine without a GPU. Kernels do nothing, memory is inaccessible addresses, and copies to
// the host give zeros. It therefore shows exactly which memory these operators and this allocator request from the
// driver, in order. It cannot show the memory of a CUDA context and of NCCL, nor the workspaces that the real cuBLAS
// and cuDNN choose for a card.
#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

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

/// A card, or a slice of one (MIG), that this process sees. FSDP_STUB_CARDS (1) cards are in the host; with
/// FSDP_STUB_SLICES=N each is N slices, of which a process sees one. CUDA_VISIBLE_DEVICES selects by number, or by the
/// beginning of the name. All have the properties of card(); a process computes on one of them.
struct Place {
  int card = 0;
  std::array<char, 16> uuid{};  ///< its last bytes: slice and card, from 1
  std::string name() const;     ///< "GPU-00000000-0000-0000-0000-000000000001"
};
const std::vector<Place>& visible();

const Card& card();
Memory& memory();

}  // namespace stub
