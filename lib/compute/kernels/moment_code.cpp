#include "lib/compute/kernels/moment_code.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "lib/compute/kernels/eight_bit_code.hpp"

namespace fsdp::kernels {
namespace {

using CodeOf = std::function<std::size_t(float)>;

/// The table of 65536 numbers that EightBitCode::codes says.
CodeOf by_table(const EightBitCode& code) {
  return [&code](float x) { return code.codes[static_cast<std::size_t>(std::fma((x + 1.0f) * 0.5f, 65535.0f, 0.5f))]; };
}

/// The nearest, of two equally near the upper one: torchao's quantize_8bit_with_qmap() and _4bit_.
CodeOf by_distance(const std::vector<float>& values) {
  return [&values](float x) {
    const auto above = std::upper_bound(values.begin(), values.end(), x);
    const auto code = static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, above - values.begin() - 1));
    if (code + 1 == values.size()) return code;
    return x - values[code] >= (values[code + 1] - values[code]) * 0.5f ? code + 1 : code;
  };
}

/// Floats in ascending order as integers, and back.
std::int64_t order_of(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits < 0 ? -static_cast<std::int64_t>(bits & std::numeric_limits<std::int32_t>::max()) : bits;
}
float of_order(std::int64_t order) {
  return order < 0 ? -std::bit_cast<float>(static_cast<std::int32_t>(-order))
                   : std::bit_cast<float>(static_cast<std::int32_t>(order));
}

/// The least number in [-1, 1] whose code is `code` or more; above 1 there is none.
float threshold_of(const CodeOf& code_of, std::size_t code) {
  auto below = order_of(-1.0f) - 1, at = order_of(1.0f) + 1;
  while (at - below > 1) {
    const auto middle = below + (at - below) / 2;
    (code_of(of_order(middle)) >= code ? at : below) = middle;
  }
  return of_order(at);
}

std::uint8_t code_by(const std::vector<float>& thresholds, float x) {
  return static_cast<std::uint8_t>(std::upper_bound(thresholds.begin(), thresholds.end(), x) - thresholds.begin());
}

/// Numbers from low to high, both included, have at most two codes.
bool is_cell(const std::vector<float>& thresholds, float low, float high) {
  const auto next = std::upper_bound(thresholds.begin(), thresholds.end(), low);
  return next == thresholds.end() || *next > high || code_by(thresholds, *next) == code_by(thresholds, high);
}

/// \param low, high  the least and the greatest number of it
MomentCode::Cell make_cell(const std::vector<float>& thresholds, float low, float high) {
  const auto below = code_by(thresholds, low), above = code_by(thresholds, high);
  const auto next = std::upper_bound(thresholds.begin(), thresholds.end(), low);
  const float threshold = next != thresholds.end() && *next <= high ? *next : high;
  if (!is_cell(thresholds, low, high)) throw std::logic_error("a cell of a code has three codes");
  return {threshold, below, static_cast<std::uint8_t>(above - below)};
}

void make_cells(MomentCode& code, bool is_signed) {
  code.shift = is_signed ? 17 : 16;  // as close as the numbers next to 1 need it
  const auto last = std::bit_cast<std::int32_t>(1.0f) >> code.shift;
  const auto end_of = [&](std::int32_t cell) { return std::bit_cast<float>(((cell + 1) << code.shift) - 1); };
  // The first one begins at 0. It is as large as it can be: a table that fits a processor's first cache is read faster.
  code.first = last - 1;
  while (!is_cell(code.thresholds, 0.0f, end_of(code.first)) || !is_cell(code.thresholds, -end_of(code.first), -0.0f))
    --code.first;
  code.negative = last - code.first + 1;
  for (const bool below_zero : {false, true}) {
    for (auto cell = code.first; cell <= last; ++cell) {
      const float low = cell == code.first ? 0.0f : std::bit_cast<float>(cell << code.shift);
      const float high = std::min(1.0f, end_of(cell));
      code.cells.push_back(below_zero ? make_cell(code.thresholds, -high, -low)
                                      : make_cell(code.thresholds, low, high));
    }
  }
}

/// torch.linspace(0, 1, 17)[1:], and create_dynamic_map(True, 3, 4).
std::vector<float> four_bit_values(bool is_signed) {
  if (!is_signed) {
    std::vector<float> values;
    for (int k = 1; k <= 16; ++k) values.push_back(static_cast<float>(k) / 16.0f);
    return values;
  }
  // Middles of 1, 2 and 4 parts of [0.1, 1], times 0.01, 0.1 and 1, as float32 has them.
  constexpr std::array kSizes{
      0.005499999970197678f, 0.0325000025331974f, 0.07750000059604645f, 0.21249999105930328f, 0.4375f,
      0.6625000238418579f,   0.887499988079071f};
  std::vector<float> values{0.0f, 1.0f};
  for (const float size : kSizes) values.insert(values.end(), {size, -size});
  std::sort(values.begin(), values.end());
  return values;
}

MomentCode make_code(MomentFormat format, bool is_signed) {
  MomentCode code;
  code.block = moment_block(format);
  code.packed = format == MomentFormat::torchao_4bit;
  code.divides = format != MomentFormat::bitsandbytes_8bit;
  code.least_scale = code.divides ? 1e-12f : 0.0f;
  const auto& eight_bit = is_signed ? signed_code() : unsigned_code();
  code.values =
      code.packed ? four_bit_values(is_signed) : std::vector<float>(eight_bit.values.begin(), eight_bit.values.end());
  if (!code.divides) code.bins = eight_bit.codes.data();
  const auto code_of = code.divides ? by_distance(code.values) : by_table(eight_bit);
  for (std::size_t k = 1; k < code.values.size(); ++k) code.thresholds.push_back(threshold_of(code_of, k));
  make_cells(code, is_signed);
  return code;
}

}  // namespace

std::int64_t moment_block(MomentFormat format) {
  return format == MomentFormat::torchao_4bit ? 128 : kLargestMomentBlock;
}

const MomentCode& moment_code(MomentFormat format, bool is_signed) {
  const auto make = [&](MomentFormat one) { return std::array{make_code(one, false), make_code(one, true)}; };
  static const std::array codes{make(MomentFormat::bitsandbytes_8bit), make(MomentFormat::torchao_8bit),
                                make(MomentFormat::torchao_4bit)};
  return codes.at(static_cast<std::size_t>(format)).at(is_signed ? 1 : 0);
}

}  // namespace fsdp::kernels
