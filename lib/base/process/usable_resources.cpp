#include "lib/base/process/usable_resources.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace fsdp {
namespace {

/// A hierarchy of control groups: its mount point, and the group that is seen there. A container sees its own group at
/// the mount point, while /proc/self/cgroup may still count from the host's root.
struct Hierarchy {
  std::filesystem::path mount_point;
  std::string top = "/";

  /// The path of a group below the mount point. \param group  as /proc/self/cgroup names it
  std::filesystem::path below(const std::string& group) const {
    if (top != "/" && group.starts_with(top) && (group.size() == top.size() || group[top.size()] == '/')) {
      return std::filesystem::path(group.substr(top.size())).relative_path();
    }
    return std::filesystem::path(group).relative_path();
  }
};

/// By proc(5), mountinfo: ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS. Else where
/// it usually is.
/// \param controller  of version 1; "" is the unified hierarchy
Hierarchy find_hierarchy(const std::filesystem::path& proc, const std::filesystem::path& cgroup,
                         const std::string& controller) {
  std::ifstream mounts(proc / "self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, source, options;
    before >> id >> parent >> device >> root >> point;
    after >> type >> source >> options;
    const bool found = controller.empty() ? type == "cgroup2"
                                          : type == "cgroup" &&
                                                ("," + options + ",").find("," + controller + ",") != std::string::npos;
    if (found && !point.empty()) return {point, root};
  }
  return {controller.empty() ? cgroup : cgroup / controller};
}

/// The folders of the group that this process is in and of those around it, up to where the hierarchy is mounted; both
/// versions (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst), each with its own names of files.
/// \param controller   of version 1, "memory" or "cpu"
/// \param proc, cgroup  where these file systems are
std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& proc,
                                                  const std::filesystem::path& cgroup) {
  std::vector<std::filesystem::path> folders;
  std::ifstream groups(proc / "self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:GROUP
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    const auto hierarchy = find_hierarchy(proc, cgroup, unified ? "" : controller);
    for (auto place = hierarchy.below(line.substr(second + 1));; place = place.parent_path()) {
      folders.push_back(hierarchy.mount_point / place);
      if (place.empty()) break;
    }
  }
  return folders;
}

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// The CPU quota of a group in cores. Version 2 has one file, version 1 has two; "max" and -1 mean no limit.
double quota_of(const std::filesystem::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream in(group / "cpu.max"); in >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return kNoLimit;
}

}  // namespace

std::int64_t machine_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const std::int64_t page = ::sysconf(_SC_PAGE_SIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? pages * page : kNoLimit;
  for (const auto& group : control_groups("memory", proc, cgroup)) {
    // Above memory.high the kernel throttles the group almost to a halt; Slurm sets both files. The last file is that
    // of version 1.
    for (const char* file : {"memory.max", "memory.high", "memory.limit_in_bytes"}) {
      std::int64_t limit = 0;
      // "max" is not a number, and the version 1 value for no limit exceeds the memory of any machine.
      if (std::ifstream in(group / file); in >> limit && limit > 0) bytes = std::min(bytes, limit);
    }
  }
  return bytes == kNoLimit ? 0 : bytes;
}

std::vector<int> allowed_cores(int pid) {
  std::vector<int> cores;
  // The kernel refuses a buffer that is too short for the host's processors.
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const auto bytes = sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(pid, bytes, mask.data()) != 0) continue;
    for (std::size_t core = 0; core < bytes * 8; ++core) {
      if (CPU_ISSET_S(core, bytes, mask.data())) cores.push_back(static_cast<int>(core));
    }
    break;
  }
  return cores;
}

int usable_cores(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  double cores = static_cast<double>(std::max<std::size_t>(1, allowed_cores().size()));
  for (const auto& group : control_groups("cpu", proc, cgroup)) {
    cores = std::min(cores, std::max(1.0, std::ceil(quota_of(group))));
  }
  return static_cast<int>(cores);
}

std::filesystem::path memory_kills_file(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  for (const auto& folder : control_groups("memory", proc, cgroup)) {
    for (const auto* name : {"memory.events", "memory.oom_control"}) {  // version 2, version 1
      if (memory_kills(folder / name) >= 0) return folder / name;
    }
  }
  return {};
}

std::int64_t memory_kills(const std::filesystem::path& file) {
  std::ifstream counts(file);
  std::string key;
  for (std::int64_t value = 0; counts >> key >> value;) {
    if (key == "oom_kill") return value;
  }
  return -1;
}

ThreadCount threads_of_rank(int ranks_on_cores, int cores) {
  const char* wish = std::getenv("OMP_NUM_THREADS");  // "4,2" sets nested regions, which are not used
  const auto wanted = wish == nullptr ? 0 : std::strtoll(wish, nullptr, 10);
  if (wanted <= 0) return {std::max(1, cores / std::max(1, ranks_on_cores)), ""};
  if (wanted <= cores) return {static_cast<int>(wanted), ""};
  return {cores, fmt::format("OMP_NUM_THREADS={}: this process may use {} core{} and computes with as many threads",
                             wish, cores, cores == 1 ? "" : "s")};
}

std::string thread_limits(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  std::string limits;
  struct rlimit of_user {};
  if (::getrlimit(RLIMIT_NPROC, &of_user) == 0 && of_user.rlim_cur != RLIM_INFINITY)
    limits = fmt::format("at most {} processes and threads of this user (ulimit -u)", of_user.rlim_cur);
  for (const auto& group : control_groups("pids", proc, cgroup)) {
    std::int64_t most = 0, used = 0;
    std::ifstream of_group(group / "pids.max"), in_use(group / "pids.current");
    if (!(of_group >> most)) continue;  // "max"
    limits += fmt::format("{}at most {} in this control group (pids.max", limits.empty() ? "" : ", ", most);
    limits += in_use >> used ? fmt::format(", {} in use)", used) : ")";
  }
  return limits.empty() ? "no limit of this user or control group is known" : limits;
}

}  // namespace fsdp
