#pragma once
// Arrays in the kernels' storage types, rounded here independently of the kernels, and error bounds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lib/compute/kernels/kernels.hpp"

namespace fsdp::test {

using kernels::Type;

inline constexpr Type kTypes[] = {Type::f32, Type::bf16, Type::f16};
/// Lengths around every vector width: 1, less, equal, one more than 16 lanes, and several vectors with a tail.
inline constexpr std::int64_t kDims[] = {1, 7, 15, 16, 17, 257};

/// Significand bits, smallest normal exponent and largest exponent of a storage type.
struct Format {
  int bits;
  int min_exponent;
  int max_exponent;
};
inline Format format_of(Type type) {
  if (type == Type::bf16) return {8, -126, 127};
  if (type == Type::f16) return {11, -14, 15};
  return {24, -126, 127};
}

/// Round to nearest even by arithmetic on doubles (exact for every float).
inline double rounded(Type type, double v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const auto f = format_of(type);
  const int exponent = std::max(std::ilogb(v), f.min_exponent);
  const double result = std::ldexp(std::nearbyint(std::ldexp(v, f.bits - 1 - exponent)), exponent - f.bits + 1);
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, 1 - f.bits), f.max_exponent);
  return std::abs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), v) : result;
}

/// Relative error of one storage rounding: half a unit in the last place, doubled because the float32 value before may
/// lie on the other side of a tie.
inline double storage_error(Type type) { return type == Type::f32 ? 0.0 : std::ldexp(1.0, -format_of(type).bits); }

class Array {
 public:
  Array(Type type, std::int64_t n)
      : type_(type), bytes_(static_cast<std::size_t>(n) * (type == Type::f32 ? 4 : 2)), size_(n) {}
  Array(Type type, const std::vector<double>& values) : Array(type, static_cast<std::int64_t>(values.size())) {
    for (std::int64_t i = 0; i < size_; ++i) set(i, values[static_cast<std::size_t>(i)]);
  }

  void* data() { return bytes_.data(); }
  std::int64_t size() const { return size_; }

  double operator[](std::int64_t i) const {
    if (type_ == Type::f32) return reinterpret_cast<const float*>(bytes_.data())[i];
    const auto bits = reinterpret_cast<const std::uint16_t*>(bytes_.data())[i];
    if (type_ == Type::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    double v = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) v = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    return (bits & 0x8000) != 0 ? -v : v;
  }
  std::uint16_t bits16(std::int64_t i) const { return reinterpret_cast<const std::uint16_t*>(bytes_.data())[i]; }

  /// `v` must be representable once rounded.
  void set(std::int64_t i, double v) {
    v = rounded(type_, v);
    if (type_ == Type::f32) {
      reinterpret_cast<float*>(bytes_.data())[i] = static_cast<float>(v);
      return;
    }
    auto& out = reinterpret_cast<std::uint16_t*>(bytes_.data())[i];
    if (type_ == Type::bf16) {
      out = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >> 16);
      return;
    }
    const std::uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    const double magnitude = std::abs(v);
    if (std::isinf(v)) {
      out = static_cast<std::uint16_t>(sign | 0x7c00);
    } else if (std::isnan(v)) {
      out = 0x7e00;
    } else if (magnitude < std::ldexp(1.0, -14)) {
      out = static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(magnitude, 24)));
    } else {
      const int exponent = std::ilogb(magnitude);
      const int fraction = static_cast<int>(std::ldexp(magnitude, 10 - exponent)) - 1024;
      out = static_cast<std::uint16_t>(sign | (exponent + 15) << 10 | fraction);
    }
  }

  bool operator==(const Array&) const = default;

 private:
  Type type_;
  std::vector<unsigned char> bytes_;
  std::int64_t size_;
};

inline Array random_array(Type type, std::int64_t n, unsigned seed, double spread = 1.0) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0.0, spread);
  Array array(type, n);
  for (std::int64_t i = 0; i < n; ++i) array.set(i, normal(engine));
  return array;
}

inline std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (auto& v : values) v = normal(engine);
  return values;
}

/// Returns the largest |got - want| divided by the allowed error: relative storage error plus `float_error` (of float32
/// arithmetic, absolute). At most 1 if correct; infinite if only one of the two is NaN.
class Excess {
 public:
  Excess(Type type, double float_error) : relative_(storage_error(type)), absolute_(float_error) {
    // Below the smallest normal number the storage type has an absolute step.
    const auto f = format_of(type);
    absolute_ += std::ldexp(1.0, f.min_exponent - f.bits + 1);
  }
  void add(double got, double want) {
    if (std::isnan(got) != std::isnan(want)) worst_ = std::numeric_limits<double>::infinity();
    if (std::isnan(got) || got == want) return;
    const double ratio = std::abs(got - want) / (relative_ * std::abs(want) + absolute_);
    worst_ = std::max(worst_, std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio);
  }
  double worst() const { return worst_; }

 private:
  double relative_;
  double absolute_;
  double worst_ = 0;
};

/// Runs body(table, type) for every instruction set of this machine and every storage type.
template <typename Body>
void for_tables_and_types(const Body& body) {
  for (const auto* table : kernels::runnable_tables()) {
    for (const auto type : kTypes) body(*table, type);
  }
}

inline std::string isa(const kernels::Table& table) { return table.name; }
inline std::string name_of(Type type) { return type == Type::f32 ? "f32" : type == Type::bf16 ? "bf16" : "f16"; }

}  // namespace fsdp::test
