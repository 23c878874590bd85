#include "lib/engine/sharding/mesh.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {

int Mesh::communicators() const {
  const auto all = axes();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [](const auto* axis) { return axis->size() > 1; }));
}

void Mesh::connect(const std::function<std::shared_ptr<TensorCollectives>(ProcessGroup& ranks)>& make) {
  for (auto* axis : {&shard, &replicate}) axis->collectives = make(*axis->ranks);
}

Mesh make_mesh(ProcessGroup& world, Sharding sharding, int shard_group_size) {
  Mesh mesh;
  mesh.data = {world.rank(), world.size()};
  auto node = world.split_by_node();
  mesh.ranks_per_node = node->size();
  mesh.local_rank = node->rank();
  mesh.num_nodes = static_cast<int>(world.all_reduce(node->rank() == 0 ? 1.0 : 0.0, Reduce::sum) + 0.5);
  int group = world.size();
  if (sharding == Sharding::no_shard) group = 1;
  if (is_hybrid(sharding)) {
    const auto smallest = static_cast<int>(world.all_reduce(node->size(), Reduce::min));
    const auto largest = static_cast<int>(world.all_reduce(node->size(), Reduce::max));
    group = shard_group_size;
    if (group == 0) {
      if (smallest != largest) {
        throw RequestError("sharding " + std::string(to_string(sharding)) +
                               " needs the same number of ranks on every node (" + std::to_string(smallest) + " to " +
                               std::to_string(largest) + " here)",
                           Remedy::set_shard_group_size);
      }
      // Split by node and local rank, not by rank: a launcher may distribute ranks round-robin over the nodes.
      mesh.replicate.ranks = world.split(node->rank());
      mesh.shard.ranks = std::move(node);
      return mesh;
    }
    if (group < 1 || world.size() % group != 0) {
      throw RequestError("a shard group of " + std::to_string(group) + " ranks does not divide the " +
                             std::to_string(world.size()) + " ranks of this job",
                         Remedy::of_shard_group_size);
    }
  }
  mesh.shard.ranks = world.split(world.rank() / group);
  mesh.replicate.ranks = world.split(world.rank() % group);
  return mesh;
}

}  // namespace fsdp
