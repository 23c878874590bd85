// Codes of optimizer moments: thresholds and cells against the definitions of bitsandbytes and torchao.
#include "lib/compute/kernels/moment_code.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "lib/compute/kernels/eight_bit_code.hpp"

namespace fsdp::kernels {
namespace {

std::size_t by_thresholds(const MomentCode& code, float x) {
  return static_cast<std::size_t>(std::upper_bound(code.thresholds.begin(), code.thresholds.end(), x) -
                                  code.thresholds.begin());
}

std::size_t by_cells(const MomentCode& code, float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  const auto cell = std::max(0, ((bits & 0x7fffffff) >> code.shift) - code.first) + (bits < 0 ? code.negative : 0);
  const auto& found = code.cells.at(static_cast<std::size_t>(cell));
  return static_cast<std::size_t>(found.below) + (x >= found.threshold ? found.rise : 0);
}

/// For bitsandbytes, compares with its table of 65536 numbers; for torchao, checks that no other number is nearer.
bool is_right(const MomentCode& code, MomentFormat format, bool is_signed, float x, std::size_t found) {
  if (format == MomentFormat::bitsandbytes_8bit) {
    const auto bin = std::fma((x + 1.0f) * 0.5f, 65535.0f, 0.5f);
    return found == (is_signed ? signed_code() : unsigned_code()).codes.at(static_cast<std::size_t>(bin));
  }
  const auto distance = [&](std::size_t k) {
    return std::fabs(static_cast<double>(x) - static_cast<double>(code.values[k]));
  };
  const auto slack = 1e-7 * std::fabs(static_cast<double>(x));  // torchao computes distances in float32
  return (found == 0 || distance(found) <= distance(found - 1) + slack) &&
         (found + 1 == code.values.size() || distance(found) <= distance(found + 1) + slack);
}

}  // namespace

TEST_SUITE("kernels/moment_code") {
  TEST_CASE("every number has the code of the definition, by thresholds and by cells") {
    constexpr auto kInfinity = std::numeric_limits<float>::infinity();
    for (const auto format :
         {MomentFormat::bitsandbytes_8bit, MomentFormat::torchao_8bit, MomentFormat::torchao_4bit}) {
      for (const bool is_signed : {true, false}) {
        const auto& code = moment_code(format, is_signed);
        CHECK(code.values.size() == (format == MomentFormat::torchao_4bit ? 16 : 256));
        CHECK(code.thresholds.size() + 1 == code.values.size());
        std::vector<float> numbers{0.0f, -0.0f, 1.0f, -1.0f};
        for (const float t : code.thresholds) {
          for (const float x : {t, std::nextafter(t, -kInfinity), std::nextafter(t, kInfinity)}) {
            if (std::fabs(x) <= 1) numbers.push_back(x);
          }
        }
        std::mt19937 random(1);
        std::uniform_real_distribution<float> size(-26, 0), sign(-1, 1);
        for (int i = 0; i < 200000; ++i) numbers.push_back(std::copysign(std::exp2(size(random)), sign(random)));
        int wrong = 0;
        for (const float x : numbers) {
          const auto found = by_thresholds(code, x);
          wrong += found == by_cells(code, x) && is_right(code, format, is_signed, x, found) ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

}  // namespace fsdp::kernels
