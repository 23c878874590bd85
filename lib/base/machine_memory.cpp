#include "lib/base/machine_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace fsdp {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// The least limit of a group and those around it, up to `root`.
std::int64_t least_limit(const std::filesystem::path& root, const std::string& group, const char* file) {
  std::int64_t least = kNoLimit;
  for (auto place = std::filesystem::path(group).relative_path();; place = place.parent_path()) {
    std::int64_t limit = 0;
    // "max" is no number, and a limit of none is larger than any machine.
    if (std::ifstream in(root / place / file); in >> limit && limit > 0) least = std::min(least, limit);
    if (place.empty()) return least;
  }
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
    if (controllers == ",,") bytes = std::min(bytes, least_limit(cgroup, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos) {
      bytes = std::min(bytes, least_limit(cgroup / "memory", group, "memory.limit_in_bytes"));
    }
  }
  return bytes == kNoLimit ? 0 : bytes;
}

}  // namespace fsdp
