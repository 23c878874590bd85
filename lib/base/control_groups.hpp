#pragma once
// The control groups that limit this process: Slurm's, PBS's, a container's.
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::detail {

/// The folders of the group that this process is in and of those around it, up to where the hierarchy is mounted; both
/// versions (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst), each with its own names of files.
/// \param controller   of version 1, "memory" or "cpu"
/// \param proc, cgroup  where these file systems are
std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& proc,
                                                  const std::filesystem::path& cgroup);

}  // namespace fsdp::detail
