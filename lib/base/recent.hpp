#pragma once
// Values that take long to make and are asked for again soon, by several threads: the last ones are kept.
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
  /// \param most  values kept; who has one keeps it longer
  explicit Recent(std::size_t most) : most_(most) {}

  /// The value of `key`, by `make()` unless it is here; a thread that comes while another makes it waits for that.
  /// \throws what make() throws, in all who wait; the next one makes it again
  template <typename Make>
  std::shared_ptr<const Value> get(const Key& key, Make make) {
    std::promise<std::shared_ptr<const Value>> promise;
    std::shared_future<std::shared_ptr<const Value>> future;
    bool mine = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = find(key);
      mine = found == kept_.end();
      if (mine) {
        kept_.emplace_back(key, promise.get_future().share());
        if (kept_.size() > most_) kept_.pop_front();
      }
      future = mine ? kept_.back().second : found->second;
    }
    if (!mine) return future.get();
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
  std::deque<std::pair<Key, std::shared_future<std::shared_ptr<const Value>>>> kept_;  ///< the oldest first
};

}  // namespace fsdp
