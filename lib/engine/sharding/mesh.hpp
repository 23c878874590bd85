#pragma once
// The device mesh: its named axes, and the two views of it (what parameters are split along, what rows are divided
// over).
#include <array>
#include <functional>
#include <memory>
#include <string_view>

#include "lib/base/types/data_ranks.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/sharding/policy.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// One axis: the ranks whose places in the mesh differ along it alone. An axis of one rank does nothing.
struct MeshAxis {
  std::string_view name;
  std::unique_ptr<ProcessGroup> ranks;
  std::shared_ptr<TensorCollectives> collectives;  ///< on the device; null until Mesh::connect()

  int size() const { return ranks->size(); }
  int rank() const { return ranks->rank(); }
};

struct Mesh {
  // Parameters, gradients and optimizer states are split along `shard`; along `replicate` copies are kept equal.
  MeshAxis shard{"shard", nullptr, nullptr};
  MeshAxis replicate{"replicate", nullptr, nullptr};
  DataRanks data;  ///< rows are divided over all ranks of both axes
  int num_nodes = 1;
  int ranks_per_node = 1;  ///< of this rank's node
  int local_rank = 0;

  std::array<const MeshAxis*, 2> axes() const { return {&shard, &replicate}; }
  /// Axes with more than one rank. Each has a communicator of its own.
  int communicators() const;
  /// Gives each axis the collectives that `make` returns for its ranks. Collective.
  void connect(const std::function<std::shared_ptr<TensorCollectives>(ProcessGroup& ranks)>& make);
};

/// full/grad/optimizer-shard: all ranks on the shard axis; no-shard: all on the replicate axis; hybrid:
/// `shard_group_size` neighbouring ranks on the shard axis, by default the ranks of a node. Collective. \throws
/// RequestError when the group size does not divide the ranks or differs between nodes
Mesh make_mesh(ProcessGroup& world, Sharding sharding, int shard_group_size);

}  // namespace fsdp
