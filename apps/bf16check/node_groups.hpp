#pragma once
#include <memory>
#include <span>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The groups of a job by node.
struct NodeGroups {
  std::unique_ptr<ProcessGroup> node;     ///< the ranks of this rank's node
  std::unique_ptr<ProcessGroup> leaders;  ///< the first ranks of all nodes; other ranks have a group of all others
  int number = 0;                         ///< of this rank's node, from 0

  /// Collective.
  explicit NodeGroups(ProcessGroup& world)
      : node(world.split_by_node()), leaders(world.split(node->rank() == 0 ? 0 : 1)), number(leaders->rank()) {
    node->broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
  }
};

}  // namespace fsdp
