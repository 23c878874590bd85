#include "lib/base/heartbeat.hpp"

#include <algorithm>

namespace fsdp {

Heartbeat::Heartbeat(std::chrono::milliseconds interval)
    : interval_(interval), thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Heartbeat::add(const std::shared_ptr<Claim>& claim) {
  const std::lock_guard lock(mutex_);
  std::erase_if(claims_, [](const auto& weak) { return weak.expired(); });
  claims_.push_back(claim);
}

void Heartbeat::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, interval_, [] { return false; });
    const auto claims = claims_;
    lock.unlock();
    for (const auto& weak : claims) {
      if (const auto claim = weak.lock()) claim->beat();
    }
    lock.lock();
  }
}

}  // namespace fsdp
