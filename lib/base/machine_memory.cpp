#include "lib/base/machine_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "lib/base/control_groups.hpp"

namespace fsdp {

std::int64_t machine_memory_bytes(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const std::int64_t page = ::sysconf(_SC_PAGE_SIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? pages * page : kNoLimit;
  for (const auto& group : detail::control_groups("memory", proc, cgroup)) {
    // Beyond "high" the kernel slows a group down until it hardly moves: Slurm sets both. The last is version 1's.
    for (const char* file : {"memory.max", "memory.high", "memory.limit_in_bytes"}) {
      std::int64_t limit = 0;
      // "max" is no number, and a limit of none is larger than any machine.
      if (std::ifstream in(group / file); in >> limit && limit > 0) bytes = std::min(bytes, limit);
    }
  }
  return bytes == kNoLimit ? 0 : bytes;
}

}  // namespace fsdp
