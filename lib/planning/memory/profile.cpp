#include "lib/planning/memory/profile.hpp"

#include <algorithm>
#include <numeric>

namespace fsdp {
namespace {

/// Bytes allocated so far, by category; activations of the current phase are counted separately.
struct Running {
  MemoryBytes bytes{};
  std::int64_t total = 0;
  std::int64_t host = 0;
  std::int64_t fresh = 0;  ///< live activations that the current phase allocated
};

/// Counts live activations of the current phase as workspace: at a peak, results cannot be told from temporaries, and
/// both are needed only by this phase.
MemoryBytes with_workspace(const Running& now) {
  auto bytes = now.bytes;
  bytes[static_cast<std::size_t>(MemoryCategory::activations)] -= now.fresh;
  bytes[static_cast<std::size_t>(MemoryCategory::workspace)] += now.fresh;
  return bytes;
}

}  // namespace

MemoryProfile profile_memory(const MemoryLog& log, const std::vector<std::int32_t>& first_phases) {
  MemoryProfile profile;
  Running now;
  std::vector<std::int32_t> born;  // by block
  std::int32_t phase = -1;
  const auto last_step = first_phases.empty() ? 0 : first_phases.back();
  MemoryPhase current;
  const auto look = [&] {
    if (now.total > current.peak_bytes || current.peak_bytes == 0) {
      current.peak_bytes = now.total;
      current.at_peak = with_workspace(now);
    }
    if (now.total <= profile.peak_bytes) return;
    profile.peak_bytes = now.total;
    profile.at_peak = with_workspace(now);
    profile.phase = log.phases[static_cast<std::size_t>(phase)];
    profile.step =
        static_cast<int>(std::upper_bound(first_phases.begin(), first_phases.end(), phase) - first_phases.begin());
  };
  const auto enter = [&](std::int32_t to) {
    // Phases without any allocation are part of the timeline, too.
    for (; phase < to; ++phase) {
      if (phase >= last_step && phase >= 0) profile.timeline.push_back(current);
      current = {log.phases[static_cast<std::size_t>(phase) + 1], now.bytes, now.total};
      now.fresh = 0;
    }
  };
  for (const auto& record : log.records) {
    if (record.phase != phase) enter(record.phase);
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
      if (record.bytes > 0) born[block] = record.phase;
      if (born[block] == record.phase) now.fresh += record.bytes;
    }
    look();
  }
  if (phase >= 0) {
    enter(static_cast<std::int32_t>(log.phases.size()) - 1);
    profile.timeline.push_back(current);
  }
  profile.steady_bytes = now.total;
  return profile;
}

CachingAllocatorStats simulate_caching_allocator(const MemoryLog& log, std::int64_t capacity_bytes) {
  CachingAllocatorModel allocator(capacity_bytes);
  auto mark = log.marks.begin();
  for (std::size_t i = 0; i < log.records.size(); ++i) {
    for (; mark != log.marks.end() && mark->record == i; ++mark) {
      if (mark->kind == AllocatorMark::Kind::empty_cache) {
        allocator.empty_cache();
      } else {
        allocator.use_private_pool(mark->kind == AllocatorMark::Kind::begin_private);
      }
    }
    const auto& record = log.records[i];
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
