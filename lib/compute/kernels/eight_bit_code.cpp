#include "lib/compute/kernels/eight_bit_code.hpp"

#include <algorithm>
#include <cmath>

namespace fsdp::kernels {
namespace {

/// torch.linspace(0.1, 1, steps), float32 and with one rounding for product and sum.
float linspace(int i, int steps) {
  const double step = (1.0f - 0.1f) / static_cast<float>(steps - 1);
  return static_cast<float>(i < steps / 2 ? static_cast<double>(0.1f) + step * i : 1.0 - step * (steps - 1 - i));
}

EightBitCode make_code(bool is_signed) {
  constexpr int kExponents = 7;
  std::vector<float> values{0.0f, 1.0f};
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    const int parts = 1 << (is_signed ? exponent : exponent + 1);
    const auto power = static_cast<float>(std::pow(10.0, exponent - (kExponents - 1)));
    for (int i = 0; i < parts; ++i) {
      const float value = power * ((linspace(i, parts + 1) + linspace(i + 1, parts + 1)) / 2.0f);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  EightBitCode code{};
  std::copy_n(values.begin(), code.values.size(), code.values.begin());
  constexpr int kBins = 65536;
  std::size_t nearest = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    const float x = -1.0f + 2.0f * static_cast<float>(bin) / static_cast<float>(kBins - 1);
    while (nearest < 255 && 0.5f * (code.values[nearest] + code.values[nearest + 1]) < x) ++nearest;
    code.codes.push_back(static_cast<std::uint8_t>(nearest));
  }
  return code;
}

}  // namespace

const EightBitCode& signed_code() {
  static const EightBitCode code = make_code(true);
  return code;
}

const EightBitCode& unsigned_code() {
  static const EightBitCode code = make_code(false);
  return code;
}

}  // namespace fsdp::kernels
