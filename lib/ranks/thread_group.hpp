#pragma once
// Ranks as threads of one process, so that tests of the engine can run whole meshes without a launcher.
#include <chrono>
#include <functional>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Runs body(group) on `num_ranks` threads and joins them. split_by_node() puts `ranks_per_node` ranks on a node. An
/// exception of any rank makes the collectives of the others throw, and is rethrown here.
void run_thread_ranks(int num_ranks, int ranks_per_node, const std::function<void(ProcessGroup&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace fsdp
