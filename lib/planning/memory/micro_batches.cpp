#include "lib/planning/memory/micro_batches.hpp"

#include <algorithm>

namespace fsdp::detail {
namespace {

constexpr std::int64_t kSegmentBytes = 2 << 20;  // segment size of the caching allocator for small tensors

template <typename Number>
void extend(Number& of_most, Number of_less, int more) {
  of_most += static_cast<Number>(more) * (of_most - of_less);
}

void extend(AxisCounts& most, const AxisCounts& less, int more) {
  extend(most.all_gathers, less.all_gathers, more);
  extend(most.reduce_scatters, less.reduce_scatters, more);
  extend(most.all_reduces, less.all_reduces, more);
  extend(most.bytes, less.bytes, more);
}

/// Only the inputs grow; the peaks stay at the same moments.
void extend(MemoryProfile& most, const MemoryProfile& less, int more) {
  const auto growth = more * std::max<std::int64_t>(0, most.peak_bytes - less.peak_bytes);
  const auto of_batch = static_cast<std::size_t>(MemoryCategory::batch);
  most.peak_bytes += growth;
  most.at_peak[of_batch] += growth;
  most.host_bytes += more * std::max<std::int64_t>(0, most.host_bytes - less.host_bytes);
  for (auto& phase : most.timeline) {
    if (phase.peak_bytes == 0) continue;
    phase.peak_bytes += growth;
    phase.at_peak[of_batch] += growth;
  }
}

}  // namespace

std::int64_t bytes_of_more(const MemoryPrediction& most, const MemoryPrediction& less, int more) {
  const auto growth = more * std::max<std::int64_t>(0, most.profile.peak_bytes - less.profile.peak_bytes);
  return (growth + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
}

void add_micro_batches(MemoryPrediction& most, const MemoryPrediction& less, int more) {
  if (most.on_gpu) {
    const auto bytes = bytes_of_more(most, less, more);
    most.allocator.allocated_peak_bytes += bytes;
    most.allocator.reserved_peak_bytes += bytes;
    most.allocator.reserved_bytes += bytes;
  }
  most.accumulation_steps += more;
  most.work.before_last = less.work.log;
  most.work.more = more;
  extend(most.comm.shard, less.comm.shard, more);
  extend(most.comm.replicate, less.comm.replicate, more);
  extend(most.flops, less.flops, more);
  extend(most.useful_flops, less.useful_flops, more);
  extend(most.tokens_per_step, less.tokens_per_step, more);
  extend(most.host.states_bytes, less.host.states_bytes, more);
  extend(most.profile, less.profile, more);
}

}  // namespace fsdp::detail
