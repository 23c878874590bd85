#pragma once
// Elapsed time by a monotonic clock.
#include <chrono>

namespace fsdp {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace fsdp
