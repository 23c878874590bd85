#pragma once
// The 8-bit code of bitsandbytes (create_dynamic_map; Dettmers et al., 2022): 256 numbers in [-1, 1], or [0, 1], close
// to each other near zero. A value is kept as the number nearest to it over its block's largest.
#include <array>
#include <cstdint>
#include <vector>

namespace fsdp::kernels {

/// Elements that share a scale, counted from a tensor's first.
inline constexpr std::int64_t kEightBitBlock = 256;

struct EightBitCode {
  std::array<float, 256> values;  ///< ascending
  /// [65536]: the nearest value to each of as many numbers from -1 to 1. A value x is rounded to one of these first,
  /// number fma((x + 1) / 2, 65535, 0.5), as bitsandbytes' CPU code does. So the code of 0 is no zero, by 2e-5: where a
  /// gradient stays away, the second moment would else be gone before the first one, and the next step would divide
  /// that by epsilon alone.
  std::vector<std::uint8_t> codes;
};

/// For first moments, and absolute maxima (QLoRA).
const EightBitCode& signed_code();
/// For second moments.
const EightBitCode& unsigned_code();

}  // namespace fsdp::kernels
