#pragma once
// A small cache for values that are expensive to compute and that several threads need again soon.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

namespace fsdp {

template <typename Key, typename Value>
class Recent {
 public:
  /// \param most  number of cached values; callers share ownership of the values that they received
  explicit Recent(std::size_t most) : most_(most) {}

  /// Returns the value of `key`; calls `make()` if it is not cached. A thread that asks for a value while another
  /// thread computes it waits for the result. An exception of make() is thrown in all waiting threads; the value is not
  /// cached.
  template <typename Make>
  std::shared_ptr<const Value> get(const Key& key, Make make) {
    std::promise<std::shared_ptr<const Value>> promise;
    std::shared_future<std::shared_ptr<const Value>> future;
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = find(key);
      is_first = found == kept_.end();
      if (is_first) {
        kept_.emplace_back(key, promise.get_future().share());
        if (kept_.size() > most_) kept_.pop_front();
      }
      future = is_first ? kept_.back().second : found->second;
    }
    if (!is_first) return future.get();
    try {
      promise.set_value(std::make_shared<const Value>(make()));
    } catch (...) {
      promise.set_exception(std::current_exception());
      const std::lock_guard lock(mutex_);
      if (const auto found = find(key); found != kept_.end()) kept_.erase(found);
    }
    return future.get();
  }

 private:
  auto find(const Key& key) {
    return std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == key; });
  }

  std::mutex mutex_;
  std::size_t most_;
  std::deque<std::pair<Key, std::shared_future<std::shared_ptr<const Value>>>> kept_;  ///< oldest first
};

}  // namespace fsdp
