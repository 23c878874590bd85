#include "lib/planning/memory/profile.hpp"

#include <doctest/doctest.h>

#include <numeric>

using fsdp::MemoryCategory;
using fsdp::MemoryLog;

namespace {

std::int64_t part(const fsdp::MemoryProfile& profile, MemoryCategory category) {
  return profile.at_peak[static_cast<std::size_t>(category)];
}

/// Two steps with a forward pass that keeps 100 bytes and a backward pass that uses 300 during one phase.
MemoryLog two_steps() {
  MemoryLog log;
  log.phases = {"start", "forward", "backward", "forward", "backward"};
  log.records.push_back({1000, 0, 0, MemoryCategory::parameters, false});
  int block = 1;
  for (const std::int32_t first : {1, 3}) {
    const auto kept = block++, temporary = block++;
    log.records.push_back({100, kept, first, MemoryCategory::activations, false});
    log.records.push_back({300, temporary, first + 1, MemoryCategory::activations, false});
    log.records.push_back({-300, temporary, first + 1, MemoryCategory::activations, false});
    log.records.push_back({-100, kept, first + 1, MemoryCategory::activations, false});
  }
  return log;
}

}  // namespace

TEST_SUITE("memory/profile") {
  TEST_CASE("the peak, its phase and step; activations that only this phase uses are workspace") {
    const auto profile = fsdp::profile_memory(two_steps(), {1, 3});

    CHECK(profile.peak_bytes == 1400);
    CHECK(profile.phase == "backward");
    CHECK(profile.step == 1);
    CHECK(part(profile, MemoryCategory::parameters) == 1000);
    CHECK(part(profile, MemoryCategory::activations) == 100);
    CHECK(part(profile, MemoryCategory::workspace) == 300);
    CHECK(std::accumulate(profile.at_peak.begin(), profile.at_peak.end(), std::int64_t{0}) == profile.peak_bytes);
    CHECK(profile.steady_bytes == 1000);
  }

  TEST_CASE("the timeline has the last step's phases, each with its own peak") {
    const auto profile = fsdp::profile_memory(two_steps(), {1, 3});

    REQUIRE(profile.timeline.size() == 2);
    CHECK(profile.timeline[0].name == "forward");
    CHECK(profile.timeline[0].peak_bytes == 1100);
    CHECK(profile.timeline[1].peak_bytes == 1400);
  }

  TEST_CASE("host memory beside a GPU is counted separately") {
    auto log = two_steps();
    log.records.push_back({5000, 90, 4, MemoryCategory::optimizer, true});

    const auto profile = fsdp::profile_memory(log, {1, 3});

    CHECK(profile.host_bytes == 5000);
    CHECK(profile.peak_bytes == 1400);
    CHECK(fsdp::simulate_caching_allocator(log, std::int64_t{1} << 40).allocated_peak_bytes == 1024 + 512 + 512);
  }
}
