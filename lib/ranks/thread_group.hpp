#pragma once
// Ranks as threads of one process: the engine's tests run whole meshes this way, with no launcher.
#include <chrono>
#include <functional>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Runs body(group) on `num_ranks` threads and waits for all. `ranks_per_node` makes split_by_node() split.
/// An exception of any rank wakes the others (their collectives throw) and is rethrown here.
void run_thread_ranks(int num_ranks, int ranks_per_node, const std::function<void(ProcessGroup&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace fsdp
