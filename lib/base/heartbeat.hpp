#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "lib/base/claim.hpp"

namespace fsdp {

/// Beats for the claims of this process from a thread of its own, as long as they live.
class Heartbeat {
 public:
  explicit Heartbeat(std::chrono::milliseconds interval);
  void add(const std::shared_ptr<Claim>& claim);

 private:
  void run(const std::stop_token& stop);
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::weak_ptr<Claim>> claims_;
  std::jthread thread_;  ///< last: it uses the members above
};

}  // namespace fsdp
