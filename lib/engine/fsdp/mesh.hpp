#pragma once
// The device mesh: a shard axis, along which parameters are split, and a replicate axis, along which copies are kept
// equal; and counts of collectives by axis.
#include <cstdint>
#include <memory>

#include "lib/engine/fsdp/policy.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct Mesh {
  std::unique_ptr<ProcessGroup> shard;
  std::unique_ptr<ProcessGroup> replicate;
  int num_nodes = 1;
  int ranks_per_node = 1;  ///< of this rank's node
  int local_rank = 0;
};

/// full/grad/optimizer-shard: all ranks on the shard axis; no-shard: all on the replicate axis; hybrid:
/// `shard_group_size` neighbouring ranks on the shard axis, by default the ranks of a node. Collective. \throws
/// UsageError when the group size does not divide the ranks or differs between nodes
Mesh make_mesh(ProcessGroup& world, Sharding sharding, int shard_group_size);

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
