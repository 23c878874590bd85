#pragma once
#include <cstddef>
#include <map>
#include <mutex>

namespace stub {

/// Page-locked host memory: copies to it are asynchronous.
class LockedMemory {
 public:
  void add(const void* address, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    blocks_[address] = bytes;
  }
  /// \return the bytes of the block
  std::size_t remove(const void* address) {
    const std::scoped_lock lock(mutex_);
    const auto block = blocks_.extract(address);
    return block.empty() ? 0 : block.mapped();
  }
  bool contains(const void* address) {
    const std::scoped_lock lock(mutex_);
    auto at = blocks_.upper_bound(address);
    if (at == blocks_.begin()) return false;
    --at;
    return address < static_cast<const char*>(at->first) + at->second;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::size_t> blocks_;
};
inline LockedMemory& locked() {
  static auto* const the_memory = new LockedMemory;
  return *the_memory;
}

}  // namespace stub
