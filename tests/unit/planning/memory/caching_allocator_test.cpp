#include "lib/planning/memory/profile.hpp"

#include <doctest/doctest.h>

using fsdp::CachingAllocatorModel;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

}  // namespace

TEST_SUITE("memory/caching allocator") {
  TEST_CASE("requests are rounded to 512 bytes and small ones share a segment of 2 MiB") {
    CachingAllocatorModel allocator(100 * kMiB);

    allocator.allocate(0, 1);
    allocator.allocate(1, 513);
    allocator.allocate(2, kMiB);

    CHECK(allocator.stats().allocated_bytes == 512 + 1024 + kMiB);
    CHECK(allocator.stats().reserved_bytes == 2 * kMiB);
  }

  TEST_CASE("above 1 MiB a segment of 20 MiB is split, from 10 MiB on each request has its own, in steps of 2 MiB") {
    CachingAllocatorModel allocator(1000 * kMiB);

    allocator.allocate(0, kMiB + 1);
    CHECK(allocator.stats().reserved_bytes == 20 * kMiB);
    allocator.allocate(1, 9 * kMiB);
    CHECK(allocator.stats().reserved_bytes == 20 * kMiB);
    allocator.allocate(2, 11 * kMiB);
    CHECK(allocator.stats().reserved_bytes == 32 * kMiB);
  }

  TEST_CASE("the smallest free block that fits is taken, and a remainder of at most 1 MiB stays with it") {
    CachingAllocatorModel allocator(1000 * kMiB);
    allocator.allocate(0, 40 * kMiB);
    allocator.allocate(1, 30 * kMiB);
    allocator.free(0);
    allocator.free(1);

    allocator.allocate(2, 29 * kMiB);
    CHECK(allocator.stats().allocated_bytes == 30 * kMiB);
    allocator.allocate(3, 20 * kMiB);
    allocator.allocate(4, 20 * kMiB);

    CHECK(allocator.stats().reserved_bytes == 70 * kMiB);
    CHECK(allocator.stats().allocated_bytes == 70 * kMiB);
  }

  TEST_CASE("adjacent free blocks merge, in whichever order they are freed") {
    for (const bool first_first : {true, false}) {
      CachingAllocatorModel allocator(1000 * kMiB);
      allocator.allocate(0, 60 * kMiB);
      allocator.free(0);
      for (int i = 1; i <= 3; ++i) allocator.allocate(i, 20 * kMiB);

      allocator.free(2);
      allocator.free(first_first ? 1 : 3);
      allocator.free(first_first ? 3 : 1);
      allocator.allocate(4, 60 * kMiB);

      CHECK(allocator.stats().reserved_bytes == 60 * kMiB);
    }
  }

  TEST_CASE("a full device releases free segments and counts a retry; a block in use keeps its segment") {
    CachingAllocatorModel allocator(100 * kMiB);
    allocator.allocate(0, 40 * kMiB);
    allocator.allocate(1, 40 * kMiB);
    allocator.free(0);
    allocator.free(1);
    CHECK(allocator.stats().num_alloc_retries == 0);

    allocator.allocate(2, 90 * kMiB);

    CHECK(allocator.stats().num_alloc_retries == 1);
    CHECK(allocator.stats().num_ooms == 0);
    CHECK(allocator.stats().reserved_bytes == 90 * kMiB);
    CHECK(allocator.stats().reserved_peak_bytes == 90 * kMiB);

    allocator.allocate(3, 20 * kMiB);
    CHECK(allocator.stats().num_alloc_retries == 2);
    CHECK(allocator.stats().num_ooms == 1);
  }

  TEST_CASE("free blocks of a segment that is partly in use are not released") {
    CachingAllocatorModel allocator(64 * kMiB);
    allocator.allocate(0, 60 * kMiB);
    allocator.free(0);
    for (int i = 1; i <= 3; ++i) allocator.allocate(i, 20 * kMiB);
    allocator.free(1);
    allocator.free(3);

    allocator.allocate(4, 30 * kMiB);

    CHECK(allocator.stats().num_ooms == 1);
  }
}
