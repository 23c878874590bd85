#include "lib/formats/block.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

Block random_block(const Shape& shape, std::mt19937& generator) {
  Block block;
  for (const auto size : shape) {
    const auto offset = static_cast<std::int64_t>(generator() % static_cast<unsigned>(size));
    block.offsets.push_back(offset);
    block.sizes.push_back(1 + static_cast<std::int64_t>(generator() % static_cast<unsigned>(size - offset)));
  }
  return block;
}

/// Calls visit(index) for every element of a block, in row-major order; index counts from the tensor's origin.
template <typename Visit>
void for_each_index(const Block& block, Visit&& visit) {
  for (std::int64_t flat = 0; flat < num_elements(block.sizes); ++flat) {
    Shape index(block.sizes.size());
    std::int64_t rest = flat;
    for (std::size_t dim = index.size(); dim-- > 0; rest /= block.sizes[dim]) {
      index[dim] = block.offsets[dim] + rest % block.sizes[dim];
    }
    visit(index);
  }
}

std::size_t place_in(const Block& block, const Shape& index) {
  std::int64_t place = 0;
  for (std::size_t dim = 0; dim < index.size(); ++dim)
    place = place * block.sizes[dim] + index[dim] - block.offsets[dim];
  return static_cast<std::size_t>(place);
}

}  // namespace

TEST_SUITE("formats/block") {
  TEST_CASE("copy_block: moves exactly the common elements, for random blocks of 0 to 4 dims") {
    std::mt19937 generator(3);
    const std::vector<Shape> shapes{{}, {7}, {1, 9}, {5, 4}, {3, 1, 6}, {4, 3, 2, 5}};
    for (int round = 0; round < 600; ++round) {
      const Shape& shape = shapes[static_cast<std::size_t>(round) % shapes.size()];
      const Block from = random_block(shape, generator), to = random_block(shape, generator);
      const auto part = intersect(from, to);
      if (!part) continue;
      const auto source = test::random_bytes(test::tensor_bytes(DType::i16, from.sizes), static_cast<unsigned>(round));
      auto target = test::random_bytes(test::tensor_bytes(DType::i16, to.sizes), 77);
      auto expected = target;
      for_each_index(*part, [&](const Shape& index) {
        for (std::size_t b = 0; b < 2; ++b)
          expected[place_in(to, index) * 2 + b] = source[place_in(from, index) * 2 + b];
      });
      copy_block(*part, from, source, to, target, 2);
      CHECK(target == expected);

      // One piece: the elements' places count up by one.
      bool in_one_piece = true;
      const std::size_t first = place_in(to, part->offsets);
      std::size_t next = first;
      for_each_index(*part, [&](const Shape& index) { in_one_piece &= place_in(to, index) == next++; });
      const auto place = contiguous_place(*part, to);
      if (place) CHECK((in_one_piece && *place == first));
      if (!place) CHECK_FALSE(in_one_piece);
    }
  }

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

  TEST_CASE("intersect: empty blocks have nothing in common, 0-dim blocks their one element") {
    CHECK_FALSE(intersect({{0}, {0}}, {{0}, {5}}));
    CHECK_FALSE(intersect({{0}, {2}}, {{2}, {2}}));
    CHECK(intersect({{}, {}}, {{}, {}}));
  }
}
