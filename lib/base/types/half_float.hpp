#pragma once
// IEEE 754's binary16.
#include <bit>
#include <cstdint>

namespace fsdp {

/// The number with these bits; exact, since float has all numbers of binary16. A NaN keeps its payload.
inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float size = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -size : size;
}

}  // namespace fsdp
