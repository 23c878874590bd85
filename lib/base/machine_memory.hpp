#pragma once
// How much memory the programs of this job may take on this machine.
#include <cstdint>
#include <filesystem>

namespace fsdp {

/// The machine's memory, or the limit of the control group this process is in (Slurm's --mem, a container's), whichever
/// is less; 0 when unknown. Both versions of control groups: Documentation/admin-guide/cgroup-v1/memory.rst,
/// cgroup-v2.rst. \param proc, cgroup  where these file systems are
std::int64_t machine_memory_bytes(const std::filesystem::path& proc = "/proc",
                                  const std::filesystem::path& cgroup = "/sys/fs/cgroup");

}  // namespace fsdp
