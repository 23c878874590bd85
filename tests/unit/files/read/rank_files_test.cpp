#include "lib/files/read/rank_files_source.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

using namespace fsdp;

namespace {
using Order = std::vector<std::vector<std::size_t>>;
}

TEST_SUITE("source/rank_files") {
  TEST_CASE("order_by_shapes: names the numbers of an optimizer where shapes leave one way") {
    const Shape matrix{4, 2}, wide{2, 4}, vector{4};
    CHECK(order_by_shapes({{matrix, vector, matrix}}, {matrix, vector, matrix}) == Order{{0, 1, 2}});
    // Matrices and vectors in two groups, as weight decay wants them.
    CHECK(order_by_shapes({{matrix, wide}, {vector, vector}}, {matrix, vector, wide, vector}) == Order{{0, 2}, {1, 3}});
    CHECK(order_by_shapes({}, {}) == Order{});
  }

  TEST_CASE("order_by_shapes: guesses nothing") {
    const Shape matrix{4, 2}, vector{4};
    // Either group could have the first matrix.
    CHECK(order_by_shapes({{matrix}, {matrix}}, {matrix, matrix}) == std::nullopt);
    // A parameter without a number, and a number without a parameter.
    CHECK(order_by_shapes({{matrix}}, {matrix, vector}) == std::nullopt);
    CHECK(order_by_shapes({{matrix, vector}}, {matrix}) == std::nullopt);
    CHECK(order_by_shapes({{vector, matrix}}, {matrix, vector}) == std::nullopt);
    CHECK(order_by_shapes({{{-1}}}, {matrix}) == std::nullopt);  // a number without state
  }
}
