#pragma once
// The memory and the cores of this machine that this process may use.
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

/// The machine's memory, or the limit of the control group this process is in (Slurm's --mem, a container's), whichever
/// is less; 0 when unknown. Both versions of control groups: Documentation/admin-guide/cgroup-v1/memory.rst,
/// cgroup-v2.rst. \param proc, cgroup  where these file systems are
std::int64_t machine_memory_bytes(const std::filesystem::path& proc = "/proc",
                                  const std::filesystem::path& cgroup = "/sys/fs/cgroup");

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
