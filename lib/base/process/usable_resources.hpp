#pragma once
// The memory, the cores and the threads of this machine that this process may use.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lib/base/types/error.hpp"

namespace fsdp {

/// The machine's memory in bytes or, if smaller, the memory limit of this process's control group (Slurm's --mem, a
/// container's limit); 0 when unknown. Supports both versions of control groups: Linux
/// Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
/// \param proc, cgroup  mount points of these file systems
std::int64_t machine_memory_bytes(const std::filesystem::path& proc = "/proc",
                                  const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// The number of cores that this process may use according to its affinity mask and the CPU quotas of its control
/// groups, at least 1. A fraction of a core counts as a whole core. \param proc, cgroup  mount points of these file
/// systems
int usable_cores(const std::filesystem::path& proc = "/proc", const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// The numbers of the cores in the affinity mask of a process, ascending; empty when there is no such process.
/// \param pid  0: this process
std::vector<int> allowed_cores(int pid = 0);

/// The file in which the kernel counts the processes of this process's control group that it killed for memory; "" when
/// there is none. \param proc, cgroup  mount points of these file systems
std::filesystem::path memory_kills_file(const std::filesystem::path& proc = "/proc",
                                        const std::filesystem::path& cgroup = "/sys/fs/cgroup");
/// The count in a file of memory_kills_file(); -1 when it is unknown.
std::int64_t memory_kills(const std::filesystem::path& file);

struct ThreadCount {
  int threads = 1;
  std::string warning;  ///< warning when OMP_NUM_THREADS exceeds the number of cores; otherwise ""
};

/// Number of compute threads of a rank: OMP_NUM_THREADS, limited to `cores`; if that is unset, `cores` divided by the
/// ranks that share them (lib/ranks/rank_threads.hpp).
ThreadCount threads_of_rank(int ranks_on_cores, int cores = usable_cores());

/// The limits on threads, as a message names them: "at most 2 processes and threads of this user (ulimit -u), at most
/// 100 in this control group (pids.max, 100 in use)". \param proc, cgroup  mount points of these file systems
std::string thread_limits(const std::filesystem::path& proc = "/proc",
                          const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Returns what `start` returns, which starts a thread. Each place that starts threads calls this.
/// \param purpose  "reads ahead", for the message
/// \throws RuntimeFailure that names the purpose and the limits, if the system starts no thread
template <typename Start>
auto start_thread(std::string_view purpose, Start&& start) {
  try {
    return start();
  } catch (const std::system_error& error) {
    throw RuntimeFailure("no thread could be started that " + std::string(purpose) + " (" + error.code().message() +
                         "): " + thread_limits());
  }
}

}  // namespace fsdp
