#pragma once
// Counts of what the engine sent.
#include <cstdint>

namespace fsdp {

/// Collectives along one mesh axis, counted by the engine as it issues them; payload bytes this rank receives.
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
