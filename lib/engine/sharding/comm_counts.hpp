#pragma once
// Counts of collectives by axis of the device mesh.
#include <cstdint>

namespace fsdp {

/// Collectives that the engine has issued along one mesh axis, and the payload bytes that this rank received.
struct AxisCounts {
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;
  std::int64_t bytes = 0;
};

struct CommCounts {
  AxisCounts shard;
  AxisCounts replicate;
};

}  // namespace fsdp
