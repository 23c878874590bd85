#include "lib/formats/block.hpp"
#include "lib/base/types/index.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

TEST_SUITE("formats/block") {
  TEST_CASE("copy_strided: transposed, stepped and expanded views") {
    const auto source = test::random_bytes(12 * 4, 5);
    const auto element = [&](const test::Bytes& bytes, std::size_t i) { return test::as_text(bytes).substr(i * 4, 4); };
    test::Bytes out(12 * 4);
    copy_strided({4, 3}, {1, 4}, source, out, 4);  // a (3, 4) tensor transposed
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < 3; ++k) CHECK(element(out, i * 3 + k) == element(source, k * 4 + i));
    }
    copy_strided({2, 3}, {0, 2}, source, std::span(out).first(6 * 4), 4);
    for (std::size_t i = 0; i < 6; ++i) CHECK(element(out, i) == element(source, i % 3 * 2));
  }

  TEST_CASE("block_is_inside: refuses negative, outside and overflowing blocks") {
    const auto huge = std::numeric_limits<std::int64_t>::max();
    CHECK(block_is_inside({{}, {}}, {}));
    CHECK(block_is_inside({{3, 0}, {0, 6}}, {3, 6}));
    CHECK_FALSE(block_is_inside({{3}, {1}}, {3}));
    CHECK_FALSE(block_is_inside({{-1}, {1}}, {3}));
    CHECK_FALSE(block_is_inside({{0}, {-1}}, {3}));
    CHECK_FALSE(block_is_inside({{huge}, {huge}}, {3}));
    CHECK_FALSE(block_is_inside({{0}, {3}}, {3, 1}));
  }

  TEST_CASE("intersect: an empty block has no intersection, a 0-dim block has one element") {
    CHECK_FALSE(intersect({{0}, {0}}, {{0}, {5}}));
    CHECK_FALSE(intersect({{0}, {2}}, {{2}, {2}}));
    CHECK(intersect({{}, {}}, {{}, {}}));
  }

  TEST_CASE("unseparated: parts of a mesh are separated, so that no pair of them is compared") {
    std::vector<Block> rows, columns, grid, uneven;
    for (std::int64_t i = 0; i < 64; ++i) {
      const auto place = i * 37 % 64;  // in no order
      rows.push_back({{place * 3, 0}, {3, 5}});
      columns.push_back({{0, place * 3}, {5, 3}});
      grid.push_back({{place / 8 * 2, 0, place % 8 * 3}, {2, 7, 3}});
      const auto height = 1 + place / 8;  // every column has its own
      uneven.push_back({{place % 8 * height, height, 0}, {height, 1, 4}});
    }
    for (auto* blocks : {&rows, &columns, &grid, &uneven}) CHECK(detail::unseparated(*blocks).empty());
  }

  TEST_CASE("unseparated: keeps blocks together that overlap, or that no plane separates") {
    std::vector<Block> blocks{{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}},
                              {{1, 1}, {1, 1}}, {{9, 9}, {1, 1}}};  // five around a centre, and one apart
    const auto groups = detail::unseparated(blocks);
    REQUIRE(groups.size() == 1);
    CHECK(groups[0].size() == 5);
    blocks = {{{0, 0}, {2, 2}}, {{5, 5}, {1, 1}}, {{1, 1}, {2, 2}}};
    const auto overlapping = detail::unseparated(blocks);
    REQUIRE(overlapping.size() == 1);
    CHECK(overlapping[0].size() == 2);
  }

  TEST_CASE("tiling_problem: any order of blocks, any overlap, and holes") {
    const std::vector<Block> wheel{{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}};
    auto whole = wheel;
    whole.push_back({{1, 1}, {1, 1}});
    CHECK(detail::tiling_problem(wheel, 9) == "its chunks hold 8 of the 9 elements wanted");
    std::ranges::sort(whole, {}, &Block::offsets);
    do {
      CHECK_FALSE(detail::tiling_problem(whole, 9));
      for (std::size_t i = 0; i < whole.size(); ++i) {
        auto twice = whole;
        twice[i] = whole[(i + 1) % whole.size()];
        CHECK(detail::tiling_problem(twice, 9) == "two of its chunks overlap");
      }
    } while (std::ranges::next_permutation(whole, {}, &Block::offsets).found);
    CHECK_FALSE(detail::tiling_problem({{{}, {}}}, 1));
    CHECK(detail::tiling_problem({{{}, {}}, {{}, {}}}, 1) == "two of its chunks overlap");
    CHECK(detail::tiling_problem({}, 1));
    CHECK_FALSE(detail::tiling_problem({}, 0));
  }
}
