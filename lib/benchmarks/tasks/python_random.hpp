#pragma once
// Random numbers as Python's module random draws them.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace fsdp {

/// random.Random(seed) of Python 3.11 and newer. Source: Lib/random.py, Modules/_randommodule.c.
class PythonRandom {
 public:
  explicit PythonRandom(std::int64_t seed);

  /// random(): in [0, 1), of 53 bits.
  double real();
  /// A number in [0, n). \pre 0 < n < 2^32
  std::size_t below(std::size_t n);
  /// sample(range(size), count). \pre count <= size < 2^32
  std::vector<std::size_t> sample(std::size_t size, std::size_t count);

 private:
  std::mt19937 words_;
};

}  // namespace fsdp
