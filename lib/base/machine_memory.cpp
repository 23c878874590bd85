#include "lib/base/machine_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string>

namespace fsdp {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// The least limit of a group and those around it, up to where the hierarchy is mounted.
std::int64_t least_limit(const std::filesystem::path& root, const std::filesystem::path& group,
                         std::initializer_list<const char*> files) {
  std::int64_t least = kNoLimit;
  for (auto place = group;; place = place.parent_path()) {
    for (const char* file : files) {
      std::int64_t limit = 0;
      // "max" is no number, and a limit of none is larger than any machine.
      if (std::ifstream in(root / place / file); in >> limit && limit > 0) least = std::min(least, limit);
    }
    if (place.empty()) return least;
  }
}

/// Where a hierarchy of control groups is mounted, and which of its groups is the top of what is seen there: a
/// container sees its own group at the mount point, while /proc/self/cgroup may still count from the host's root.
struct Hierarchy {
  std::filesystem::path mount_point;
  std::string top = "/";

  /// Of a group as /proc/self/cgroup names it.
  std::filesystem::path below(const std::string& group) const {
    if (top != "/" && group.starts_with(top) && (group.size() == top.size() || group[top.size()] == '/')) {
      return std::filesystem::path(group.substr(top.size())).relative_path();
    }
    return std::filesystem::path(group).relative_path();
  }
};

/// By proc(5), mountinfo: ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS. Else where
/// it usually is.
/// \param version2  the unified hierarchy, else the one of version 1 that has the memory controller
Hierarchy find_hierarchy(const std::filesystem::path& proc, const std::filesystem::path& cgroup, bool version2) {
  std::ifstream mounts(proc / "self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, source, options;
    before >> id >> parent >> device >> root >> point;
    after >> type >> source >> options;
    const bool found =
        version2 ? type == "cgroup2" : type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos;
    if (found && !point.empty()) return {point, root};
  }
  return {version2 ? cgroup : cgroup / "memory"};
}

}  // namespace

std::int64_t machine_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const std::int64_t page = ::sysconf(_SC_PAGE_SIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? pages * page : kNoLimit;
  std::ifstream groups(proc / "self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:GROUP
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const auto group = line.substr(second + 1);
    if (controllers == ",,") {
      const auto hierarchy = find_hierarchy(proc, cgroup, true);
      // Beyond "high" the kernel slows a group down until it hardly moves: Slurm sets both.
      bytes =
          std::min(bytes, least_limit(hierarchy.mount_point, hierarchy.below(group), {"memory.max", "memory.high"}));
    }
    if (controllers.find(",memory,") != std::string::npos) {
      const auto hierarchy = find_hierarchy(proc, cgroup, false);
      bytes = std::min(bytes, least_limit(hierarchy.mount_point, hierarchy.below(group), {"memory.limit_in_bytes"}));
    }
  }
  return bytes == kNoLimit ? 0 : bytes;
}

}  // namespace fsdp
