#include "lib/benchmarks/tasks/python_random.hpp"

#include <doctest/doctest.h>

namespace {

using Indices = std::vector<std::size_t>;

TEST_SUITE("benchmarks/python_random") {
  // Python 3.11: r = random.Random(seed); r.getrandbits(32) three times, then in this order what is compared.
  struct Drawn {
    std::int64_t seed;
    double real;
    Indices below, of_10, of_22, of_500, of_86, of_85;
  };

  TEST_CASE("numbers are Python's") {
    const std::vector<Drawn> known{
        {1234,
         0.11685051774599753,
         {0, 0, 5, 709, 11001},
         {1, 5, 3},
         {0, 21, 20, 11, 15, 14, 4},
         {46, 93, 365, 58, 432, 7},
         {64, 62, 31, 8, 85, 69},
         {59, 8, 76, 11, 65, 74}},
        {0,
         0.890243920837131,
         {0, 1, 4, 497, 53075},
         {4, 7, 5},
         {18, 6, 16, 4, 9, 21, 3},
         {316, 409, 128, 465, 272, 361},
         {77, 18, 39, 12, 9, 42},
         {60, 71, 12, 45, 55, 40}},
        {-5,
         0.35853551175589526,
         {0, 1, 6, 965, 32643},
         {0, 2, 1},
         {11, 15, 7, 12, 17, 3, 19},
         {6, 374, 110, 208, 143, 93},
         {49, 20, 9, 17, 79, 56},
         {16, 84, 0, 82, 26, 27}},
        {(std::int64_t{1} << 40) + 3,
         0.8337623036996417,
         {0, 1, 1, 482, 43210},
         {4, 9, 8},
         {15, 10, 17, 11, 3, 1, 14},
         {62, 424, 252, 34, 14, 184},
         {13, 33, 26, 84, 69, 31},
         {39, 54, 21, 38, 63, 2}},
    };
    for (const auto& one : known) {
      CAPTURE(one.seed);
      fsdp::PythonRandom random(one.seed);
      for (int word = 0; word < 3; ++word) random.below(std::size_t{0xffffffff});
      CHECK(random.real() == one.real);
      Indices below;
      for (const std::size_t n : {1, 2, 7, 1000, 65536}) below.push_back(random.below(n));
      CHECK(below == one.below);
      CHECK(random.sample(10, 3) == one.of_10);
      CHECK(random.sample(22, 7) == one.of_22);
      CHECK(random.sample(500, 6) == one.of_500);
      CHECK(random.sample(86, 6) == one.of_86);  // the smallest pool of which a set of what was drawn is kept
      CHECK(random.sample(85, 6) == one.of_85);
    }
  }
}

}  // namespace
