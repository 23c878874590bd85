#include "lib/memory/profile.hpp"

#include <algorithm>
#include <numeric>

namespace fsdp {
namespace {

/// What is allocated, by category; what the current moment allocated stands apart.
struct Running {
  MemoryBytes bytes{};
  std::int64_t total = 0;
  std::int64_t host = 0;
  std::int64_t fresh = 0;  ///< activations made in the moment that goes on
};

/// Activations that the moment made and that are still there: at a peak nobody can tell a result from a temporary, but
/// both are needed only by the moment that goes on.
MemoryBytes with_workspace(const Running& now) {
  auto bytes = now.bytes;
  bytes[static_cast<std::size_t>(MemoryCategory::activations)] -= now.fresh;
  bytes[static_cast<std::size_t>(MemoryCategory::workspace)] += now.fresh;
  return bytes;
}

}  // namespace

MemoryProfile profile_memory(const MemoryLog& log, const std::vector<std::int32_t>& first_moments) {
  MemoryProfile profile;
  Running now;
  std::vector<std::int32_t> born;  // by block
  std::int32_t moment = -1;
  const auto last_step = first_moments.empty() ? 0 : first_moments.back();
  MemoryMoment current;
  const auto look = [&] {
    if (now.total > current.peak_bytes || current.peak_bytes == 0) {
      current.peak_bytes = now.total;
      current.at_peak = with_workspace(now);
    }
    if (now.total <= profile.peak_bytes) return;
    profile.peak_bytes = now.total;
    profile.at_peak = with_workspace(now);
    profile.moment = log.moments[static_cast<std::size_t>(moment)];
    profile.step =
        static_cast<int>(std::upper_bound(first_moments.begin(), first_moments.end(), moment) - first_moments.begin());
  };
  const auto enter = [&](std::int32_t to) {
    // Moments in which nothing was allocated are stretches of the picture, too.
    for (; moment < to; ++moment) {
      if (moment >= last_step && moment >= 0) profile.timeline.push_back(current);
      current = {log.moments[static_cast<std::size_t>(moment) + 1], now.bytes, now.total};
      now.fresh = 0;
    }
  };
  for (const auto& record : log.records) {
    if (record.moment != moment) enter(record.moment);
    if (record.on_host) {
      now.host += record.bytes;
      profile.host_bytes = std::max(profile.host_bytes, now.host);
      continue;
    }
    now.total += record.bytes;
    now.bytes[static_cast<std::size_t>(record.category)] += record.bytes;
    if (record.category == MemoryCategory::activations && record.block >= 0) {
      const auto block = static_cast<std::size_t>(record.block);
      if (born.size() <= block) born.resize(block + 1, -1);
      if (record.bytes > 0) born[block] = record.moment;
      if (born[block] == record.moment) now.fresh += record.bytes;
    }
    look();
  }
  if (moment >= 0) {
    enter(static_cast<std::int32_t>(log.moments.size()) - 1);
    profile.timeline.push_back(current);
  }
  profile.steady_bytes = now.total;
  return profile;
}

CachingAllocatorStats simulate_caching_allocator(const MemoryLog& log, std::int64_t capacity_bytes) {
  CachingAllocatorModel allocator(capacity_bytes);
  for (const auto& record : log.records) {
    if (record.on_host || record.block < 0) continue;
    if (record.bytes > 0) {
      allocator.allocate(record.block, record.bytes);
    } else {
      allocator.free(record.block);
    }
  }
  return allocator.stats();
}

}  // namespace fsdp
