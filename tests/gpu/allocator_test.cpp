// Compares the model of PyTorch's caching allocator with the allocator itself on the stub driver (stub_card.hpp):
// random allocations near the card's capacity, with all statistics compared after each one.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "lib/planning/memory/profile.hpp"

namespace {

using fsdp::CachingAllocatorModel;
using fsdp::CachingAllocatorStats;
namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

CachingAllocatorStats real_stats() {
  const auto stats = allocator::getDeviceStats(0);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].current,
          stats.reserved_bytes[kAll].peak,     stats.num_alloc_retries,          stats.num_ooms};
}

void start_afresh() {
  allocator::emptyCache();
  allocator::resetPeakStats(0);
  allocator::resetAccumulatedStats(0);
}

/// Sizes like those of activations and parameters: mostly small, some of a few MiB, some of a tenth of the card.
class Sizes {
 public:
  explicit Sizes(std::mt19937_64& random) : random_(random) {}
  std::int64_t next(std::int64_t capacity_bytes) {
    switch (one_of(4)) {
      case 0:
        return 1 + one_of(kMiB);
      case 1:
        return kMiB - 600 + one_of(1200);  // near the border between the two pools
      case 2:
        return kMiB + one_of(19 * kMiB);
      default:
        return 8 * kMiB + one_of(capacity_bytes / 8);
    }
  }
  std::int64_t one_of(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }

 private:
  std::mt19937_64& random_;
};

struct Live {
  std::int64_t id;
  std::int64_t bytes;
  void* address;
};

struct Outcome {
  std::int64_t retries = 0, ooms = 0, operations = 0;
};

/// Runs one sequence until the card is full or `operations` are done; frees the remaining blocks.
Outcome compare(std::uint64_t seed, std::int64_t capacity_bytes, std::int64_t operations) {
  std::mt19937_64 random(seed);
  Sizes sizes(random);
  CachingAllocatorModel model(capacity_bytes);
  std::vector<Live> live;
  std::int64_t asked_bytes = 0;
  Outcome outcome;
  start_afresh();
  CAPTURE(seed);
  for (; outcome.operations < operations && outcome.ooms == 0; ++outcome.operations) {
    CAPTURE(outcome.operations);
    // Blocks are freed more often the fuller the card is, so that the total varies below the capacity.
    const bool free = !live.empty() && sizes.one_of(capacity_bytes) < asked_bytes + asked_bytes / 16;
    if (free) {
      const auto place = static_cast<std::size_t>(sizes.one_of(static_cast<std::int64_t>(live.size())));
      allocator::raw_delete(live[place].address);
      model.free(live[place].id);
      asked_bytes -= live[place].bytes;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(place));
    } else {
      const auto bytes = sizes.next(capacity_bytes);
      model.allocate(outcome.operations, bytes);
      try {
        live.push_back({outcome.operations, bytes, allocator::raw_alloc(static_cast<std::size_t>(bytes))});
        asked_bytes += bytes;
      } catch (const c10::OutOfMemoryError&) {
        outcome.ooms = 1;
      }
    }
    const auto real = real_stats(), predicted = model.stats();
    REQUIRE(predicted.num_alloc_retries == real.num_alloc_retries);
    REQUIRE(predicted.num_ooms == real.num_ooms);
    outcome.retries = real.num_alloc_retries;
    if (outcome.ooms > 0) continue;  // the model counts the request as served
    REQUIRE(predicted.allocated_bytes == real.allocated_bytes);
    REQUIRE(predicted.allocated_peak_bytes == real.allocated_peak_bytes);
    REQUIRE(predicted.reserved_bytes == real.reserved_bytes);
    REQUIRE(predicted.reserved_peak_bytes == real.reserved_peak_bytes);
  }
  for (const auto& block : live) allocator::raw_delete(block.address);
  return outcome;
}

}  // namespace

TEST_SUITE("gpu/allocator model") {
  TEST_CASE("random sequences near capacity: statistics equal the allocator's after each operation") {
    const char* total = std::getenv("FSDP_STUB_TOTAL");
    REQUIRE_MESSAGE(total != nullptr, "runs under the stub driver: ctest sets it up");
    const std::int64_t capacity_bytes = std::stoll(total);
    allocator::init(1);
    Outcome all;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const auto one = compare(seed, capacity_bytes, 2000);
      all.operations += one.operations;
      all.retries += one.retries;
      all.ooms += one.ooms;
    }
    MESSAGE(all.operations << " operations, " << all.retries << " retries, " << all.ooms << " out of memory");
    // Capacity was reached, and allocations succeeded after retries as well as failed.
    CHECK(all.operations > 5000);
    CHECK(all.retries > 20);
    CHECK(all.ooms > 5);
    CHECK(all.retries > all.ooms);
  }
}
