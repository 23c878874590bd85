#include "lib/base/usable_cores.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <vector>

#include "lib/base/control_groups.hpp"

namespace fsdp {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// How many cores' time a group may have; version 2 has one file, version 1 two. "max" and -1 are no limit.
double quota_of(const std::filesystem::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream in(group / "cpu.max"); in >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return kNoLimit;
}

/// The kernel refuses a mask that is too short for the host's processors.
int cores_of_affinity() {
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const auto bytes = sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, mask.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, mask.data()));
  }
  return 1;
}

}  // namespace

int usable_cores(const std::filesystem::path& proc, const std::filesystem::path& cgroup) {
  double cores = cores_of_affinity();
  for (const auto& group : detail::control_groups("cpu", proc, cgroup)) {
    cores = std::min(cores, std::max(1.0, std::ceil(quota_of(group))));
  }
  return static_cast<int>(cores);
}

ThreadCount threads_of_rank(int ranks_on_node, int cores) {
  const char* wish = std::getenv("OMP_NUM_THREADS");  // "4,2" is of nested regions, of which there are none
  const auto wanted = wish == nullptr ? 0 : std::strtoll(wish, nullptr, 10);
  if (wanted <= 0) return {std::max(1, cores / std::max(1, ranks_on_node)), ""};
  if (wanted <= cores) return {static_cast<int>(wanted), ""};
  return {cores, fmt::format("OMP_NUM_THREADS={}: this process may use {} core{} and computes with as many threads",
                             wish, cores, cores == 1 ? "" : "s")};
}

}  // namespace fsdp
