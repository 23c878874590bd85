// Compiled so that products and sums stay apart (CMakeLists.txt).
#include "lib/compute/kernels/nf4_code.hpp"

#include <algorithm>
#include <cmath>

#include "lib/base/types/index.hpp"
#include "lib/compute/kernels/eight_bit_code.hpp"

namespace fsdp::kernels {
namespace {

constexpr std::int64_t kLanes = 8, kStreams = 4;
constexpr std::size_t kLevels = 4;
using Sums = std::array<float, static_cast<std::size_t>(kLanes* kStreams)>;

void add(Sums& to, const float* from) {
  for (std::size_t k = 0; k < to.size(); ++k) to[k] += from[k];
}

/// Sum over `rows` rows of four vectors each, in cascades, which limits rounding errors.
Sums sum_of_rows(const float* values, std::int64_t rows) {
  constexpr std::int64_t kStep = 16, kRow = kLanes * kStreams;
  std::array<Sums, kLevels> level{};
  std::int64_t i = 0;
  while (i + kStep <= rows) {
    for (const auto end = i + kStep; i < end; ++i) add(level[0], values + i * kRow);
    auto full = i / kStep;
    for (std::size_t j = 1; j < kLevels; ++j, full /= kStep) {
      add(level[j], level[j - 1].data());
      level[j - 1] = {};
      if (full % kStep != 0) break;
    }
  }
  for (; i < rows; ++i) add(level[0], values + i * kRow);
  for (std::size_t j = 1; j < kLevels; ++j) add(level[0], level[j].data());
  return level[0];
}

float sum_of(const float* values, std::int64_t n) {
  const auto vectors = n / kLanes, rows = vectors / kStreams;
  auto sums = sum_of_rows(values, rows);
  const auto add_vector = [&](const float* from) {
    for (std::int64_t k = 0; k < kLanes; ++k) element(sums, k) += from[k];
  };
  for (auto v = rows * kStreams; v < vectors; ++v) add_vector(values + v * kLanes);
  for (std::int64_t stream = 1; stream < kStreams; ++stream) add_vector(sums.data() + stream * kLanes);
  float sum = 0;
  for (auto i = vectors * kLanes; i < n; ++i) sum += values[i];
  for (std::int64_t k = 0; k < kLanes; ++k) sum += element(sums, k);
  return sum;
}

float mean_of(const float* values, std::int64_t n) {
  constexpr std::int64_t kSerial = 32767;  // one below the grain from which on torch divides a sum among threads
  double sum = 0;
  for (std::int64_t first = 0; first < n; first += kSerial)
    sum += static_cast<double>(sum_of(values + first, std::min(kSerial, n - first)));
  return static_cast<float>(sum) / static_cast<float>(n);
}

/// The 8-bit code nearest to x in [-1, 1], as EightBitCode::codes says.
std::uint8_t nearest_code(float x) {
  x = std::clamp(x, -1.0f, 1.0f);
  return signed_code().codes[static_cast<std::size_t>(std::fma((x + 1.0f) * 0.5f, 65535.0f, 0.5f))];
}

}  // namespace

float nf4_nest_scales(const Nf4NestArgs& a) {
  const float offset = mean_of(a.scales, a.n);
  for (std::int64_t first = 0; first < a.n; first += kEightBitBlock) {
    const auto last = std::min(a.n, first + kEightBitBlock);
    float largest = 0;
    for (auto i = first; i < last; ++i) largest = std::max(largest, std::fabs(a.scales[i] - offset));
    a.nested[first / kEightBitBlock] = largest;
    const float inverse = largest > 0 ? 1.0f / largest : 0.0f;
    for (auto i = first; i < last; ++i) a.codes[i] = nearest_code((a.scales[i] - offset) * inverse);
  }
  return offset;
}

void nf4_nested_scales(const Nf4NestedArgs& a, std::int64_t begin, std::int64_t end) {
  const auto& values = signed_code().values;
  for (auto i = begin; i < end; ++i)
    a.out[i] = values[a.codes[i]] * a.nested[(a.first + i) / kEightBitBlock] + a.offset;
}

const std::array<float, 512>& nf4_pairs() {
  static const std::array<float, 512> pairs = [] {
    std::array<float, 512> values{};
    for (std::size_t byte = 0; byte < 256; ++byte) {
      values[2 * byte] = kNf4Code[byte >> 4];
      values[2 * byte + 1] = kNf4Code[byte & 15];
    }
    return values;
  }();
  return pairs;
}

}  // namespace fsdp::kernels
