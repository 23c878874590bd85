#pragma once
// How many processors this process may use, and how many threads it is to compute with.
#include <filesystem>
#include <string>

namespace fsdp {

/// The cores that the scheduler, the launcher, taskset or a control group's quota has left to this process, at least 1.
/// A quota of a part of a core counts as that core. \param proc, cgroup  where these file systems are
int usable_cores(const std::filesystem::path& proc = "/proc", const std::filesystem::path& cgroup = "/sys/fs/cgroup");

struct ThreadCount {
  int threads = 1;
  std::string warning;  ///< a line where OMP_NUM_THREADS asked for more than there are cores; else ""
};

/// Of a rank: OMP_NUM_THREADS, but no more than the cores that it may use; without it the cores over the node's ranks.
ThreadCount threads_of_rank(int ranks_on_node, int cores = usable_cores());

}  // namespace fsdp
