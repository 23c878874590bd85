// Measures the allocations of this test program, so that tests notice a parser that trusts a size from a file.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "tests/unit/checkpoints/programs/hostile_support.hpp"

namespace {

std::atomic<std::size_t> largest{0};

void* allocate(std::size_t size) {
  std::size_t seen = largest.load(std::memory_order_relaxed);
  while (size > seen && !largest.compare_exchange_weak(seen, size, std::memory_order_relaxed)) {
  }
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined: otherwise GCC sees free() of memory from an operator new that it did not inline, and warns.
[[gnu::noinline]] void* operator new(std::size_t size) { return allocate(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return allocate(size); }
// Without this the operator of the sanitizers would be used, whose blocks free() cannot release.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace fsdp::test {

void reset_largest_allocation() { largest = 0; }
std::size_t largest_allocation() { return largest; }

}  // namespace fsdp::test

TEST_SUITE("source/hostile") {
  TEST_CASE("allocations are counted") {
    fsdp::test::reset_largest_allocation();
    const std::vector<char> block(12345);
    CHECK(fsdp::test::largest_allocation() >= block.size());
  }
}
