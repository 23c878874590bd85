#include "lib/files/transform/check_numbers.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Floating-point numbers by their bits: all ones in `exponent` means infinite, or NaN when `mantissa` is not zero.
template <typename Bits>
NonFinite count(std::span<const std::byte> bytes, Bits exponent, Bits mantissa, std::uint64_t parts) {
  NonFinite found;
  for (std::uint64_t i = 0, n = bytes.size() / sizeof(Bits) / parts; i < n; ++i) {
    bool nan = false;
    bool inf = false;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const auto bits = load<Bits>(bytes, i * parts + part);
      if ((bits & exponent) != exponent) continue;
      ((bits & mantissa) != 0 ? nan : inf) = true;
    }
    if (!nan && !inf) continue;
    if (found.nan + found.inf == 0) found.first = i;
    ++(nan ? found.nan : found.inf);
  }
  return found;
}

/// The format without infinities: only all ones are NaN.
NonFinite count_e4m3fn(std::span<const std::byte> bytes) {
  NonFinite found;
  for (std::uint64_t i = 0; i < bytes.size(); ++i) {
    if ((load<std::uint8_t>(bytes, i) & 0x7f) != 0x7f) continue;
    if (found.nan++ == 0) found.first = i;
  }
  return found;
}

/// A small float of 1 sign bit, `exponent_bits` and `mantissa_bits`, IEEE-like but for what all ones mean.
double small_float(unsigned bits, int exponent_bits, int mantissa_bits) {
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1u) != 0 ? -1 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), static_cast<int>(exponent) - bias - mantissa_bits);
}

double with_infinities(unsigned bits, int exponent_bits, int mantissa_bits) {
  const unsigned ones = (1u << exponent_bits) - 1;
  if ((bits >> mantissa_bits & ones) != ones) return small_float(bits, exponent_bits, mantissa_bits);
  if ((bits & ((1u << mantissa_bits) - 1)) != 0) return std::nan("");
  return (bits >> (exponent_bits + mantissa_bits)) != 0 ? -INFINITY : INFINITY;
}

double real_value(DType dtype, std::span<const std::byte> bytes, std::uint64_t i) {
  switch (dtype) {
    case DType::f64:
      return load<double>(bytes, i);
    case DType::f32:
      return static_cast<double>(load<float>(bytes, i));
    case DType::f16:
      return with_infinities(load<std::uint16_t>(bytes, i), 5, 10);
    case DType::bf16:
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(bytes, i)) << 16));
    case DType::i64:
      return static_cast<double>(load<std::int64_t>(bytes, i));
    case DType::i32:
      return load<std::int32_t>(bytes, i);
    case DType::i16:
      return load<std::int16_t>(bytes, i);
    case DType::i8:
      return load<std::int8_t>(bytes, i);
    case DType::u8:
    case DType::boolean:
      return load<std::uint8_t>(bytes, i);
    case DType::u16:
      return load<std::uint16_t>(bytes, i);
    case DType::u32:
      return load<std::uint32_t>(bytes, i);
    case DType::u64:
      return static_cast<double>(load<std::uint64_t>(bytes, i));
    case DType::f8_e4m3fn: {
      const unsigned bits = load<std::uint8_t>(bytes, i);
      return (bits & 0x7f) == 0x7f ? std::nan("") : small_float(bits, 4, 3);
    }
    case DType::f8_e5m2:
      return with_infinities(load<std::uint8_t>(bytes, i), 5, 2);
    case DType::c64:
    case DType::c128:
      break;
  }
  throw std::logic_error("element_value: a complex type has no single real value");
}

}  // namespace

NonFinite count_non_finite(DType dtype, std::span<const std::byte> elements) {
  constexpr std::uint64_t exponent64 = 0x7ff0'0000'0000'0000;
  constexpr std::uint64_t mantissa64 = 0x000f'ffff'ffff'ffff;
  switch (dtype) {
    case DType::f64:
      return count(elements, exponent64, mantissa64, 1);
    case DType::c128:
      return count(elements, exponent64, mantissa64, 2);
    case DType::f32:
      return count<std::uint32_t>(elements, 0x7f80'0000, 0x007f'ffff, 1);
    case DType::c64:
      return count<std::uint32_t>(elements, 0x7f80'0000, 0x007f'ffff, 2);
    case DType::f16:
      return count<std::uint16_t>(elements, 0x7c00, 0x03ff, 1);
    case DType::bf16:
      return count<std::uint16_t>(elements, 0x7f80, 0x007f, 1);
    case DType::f8_e5m2:
      return count<std::uint8_t>(elements, 0x7c, 0x03, 1);
    case DType::f8_e4m3fn:
      return count_e4m3fn(elements);
    default:
      return {};
  }
}

ElementValue element_value(DType dtype, std::span<const std::byte> elements, std::uint64_t index) {
  if (is_complex(dtype)) {
    const auto part = dtype == DType::c64 ? DType::f32 : DType::f64;
    return {real_value(part, elements, 2 * index), real_value(part, elements, 2 * index + 1)};
  }
  return {real_value(dtype, elements, index), 0};
}

std::string number_text(double value) { return fmt::format("{}", value); }

}  // namespace fsdp
