#pragma once
// How many threads a rank computes with, by the cores that the launcher gave it and the other ranks of its node.
#include "lib/base/process/usable_resources.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// threads_of_rank() for this rank: it divides its cores with those ranks of the node that may use some of them, too.
/// Launchers that bind give each rank cores of its own. The warning also tells where mpirun of Open MPI, which binds by
/// default, left most cores idle. Collective. \param node  the ranks of this host
ThreadCount threads_on_node(ProcessGroup& node);

namespace detail {
/// The number of entries of `cores` that have a core in common with `cores[self]`, which counts, too.
int ranks_sharing(const std::vector<std::vector<int>>& cores, std::size_t self);
}  // namespace detail
}  // namespace fsdp
