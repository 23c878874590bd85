#include "lib/ranks/heap_peer_memory.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

TEST_SUITE("mpi/heap_peer_memory") {
  TEST_CASE("HeapRegion: a region takes no more memory than it has bytes, by whole pages") {
    constexpr std::size_t kPage = 4096, kHugePage = std::size_t{2} << 20;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kPage, kHugePage - 1, 3 * kHugePage + 5}) {
      CAPTURE(bytes);
      fsdp::detail::HeapRegion region(bytes, 1);
      std::memset(region.data(), 1, bytes);
      CHECK(region.size_bytes() >= std::max(bytes, std::size_t{1}));
      CHECK(region.size_bytes() <= bytes + kPage);
      // The end of the region has pages of its own: the kernel must not have made a huge page of it.
      std::vector<unsigned char> resident(region.size_bytes() / kPage);
      REQUIRE(::mincore(region.data(), region.size_bytes(), resident.data()) == 0);
      CHECK(std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; }) <=
            static_cast<std::ptrdiff_t>((bytes + kPage - 1) / kPage));
    }
  }
}
