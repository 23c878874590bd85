#include "lib/checkpoints/source/rank_files_source.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace fsdp;

namespace {
using Order = std::vector<std::vector<std::size_t>>;

/// The order of groups without names.
std::optional<Order> by_shapes(const std::vector<std::vector<Shape>>& groups, const std::vector<Shape>& shapes) {
  std::vector<NumberedGroup> numbered;
  for (const auto& group : groups) numbered.push_back({group, {}});
  return order_of_numbers(numbered, std::vector<std::string>(shapes.size(), "x"), shapes);
}
}  // namespace

TEST_SUITE("source/rank_files") {
  TEST_CASE("order_of_numbers: names the numbers of an optimizer where shapes leave one way") {
    const Shape matrix{4, 2}, wide{2, 4}, vector{4};
    CHECK(by_shapes({{matrix, vector, matrix}}, {matrix, vector, matrix}) == Order{{0, 1, 2}});
    // Matrices and vectors in two groups, as weight decay wants them.
    CHECK(by_shapes({{matrix, wide}, {vector, vector}}, {matrix, vector, wide, vector}) == Order{{0, 2}, {1, 3}});
    CHECK(by_shapes({}, {}) == Order{});
  }

  TEST_CASE("order_of_numbers: guesses nothing") {
    const Shape matrix{4, 2}, vector{4};
    // Either group could have the first matrix.
    CHECK(by_shapes({{matrix}, {matrix}}, {matrix, matrix}) == std::nullopt);
    // A parameter without a number, and a number without a parameter.
    CHECK(by_shapes({{matrix}}, {matrix, vector}) == std::nullopt);
    CHECK(by_shapes({{matrix, vector}}, {matrix}) == std::nullopt);
    CHECK(by_shapes({{vector, matrix}}, {matrix, vector}) == std::nullopt);
    CHECK(by_shapes({{{-1}}}, {matrix}) == std::nullopt);  // a number without state
  }

  TEST_CASE("order_of_numbers: names decide, and shapes only without them") {
    const Shape matrix{4, 2}, vector{4}, none{-1};
    const std::vector<std::string> names{"net.k.weight", "net.v.weight", "norm.weight"};
    const std::vector<Shape> shapes{matrix, matrix, vector};
    // Shapes would take k for v here.
    CHECK(order_of_numbers({{{matrix, matrix, vector}, {"v.weight", "k.weight", "norm.weight"}}}, names, shapes) ==
          Order{{1, 0, 2}});
    // Several groups in any order, and a parameter that is frozen.
    CHECK(order_of_numbers({{{vector}, {"module.norm.weight"}}, {{matrix}, {"net.v.weight"}}}, names, shapes) ==
          Order{{2}, {1}});
    CHECK(order_of_numbers({{{none, matrix}, {"net.k.weight", "net.v.weight"}}}, names, shapes) == Order{{0, 1}});
    // A name twice, one that the model has not, one of another shape, and one that is missing.
    CHECK(order_of_numbers({{{matrix, matrix}, {"k.weight", "net.k.weight"}}}, names, shapes) == std::nullopt);
    CHECK(order_of_numbers({{{matrix, matrix}, {"k.weight", "q.weight"}}}, names, shapes) == std::nullopt);
    CHECK(order_of_numbers({{{vector}, {"k.weight"}}}, names, shapes) == std::nullopt);
    CHECK(order_of_numbers({{{matrix, matrix}, {"k.weight"}}}, names, shapes) == std::nullopt);
    // "weight" ends all of them, so it is none's: as without names.
    CHECK(order_of_numbers({{{matrix, matrix, vector}, {"weight", "weight", "weight"}}}, names, shapes) ==
          Order{{0, 1, 2}});
  }
}
