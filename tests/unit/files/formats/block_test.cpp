#include "lib/files/formats/block.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "tests/unit/files/formats/formats_test_support.hpp"

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
}
