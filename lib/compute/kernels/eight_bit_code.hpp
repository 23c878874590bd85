#pragma once
// The 8-bit code of bitsandbytes (create_dynamic_map; Dettmers et al., 2022): 256 numbers in [-1, 1] or [0, 1] that
// are denser near zero. A value is stored as the index of the number nearest to value / scale of its block.
#include <array>
#include <cstdint>
#include <vector>

namespace fsdp::kernels {

/// Elements per block, counted from the tensor's first element.
inline constexpr std::int64_t kEightBitBlock = 256;

struct EightBitCode {
  std::array<float, 256> values;  ///< ascending
  /// [65536]: the nearest value to each of as many numbers from -1 to 1. A value x is rounded to one of these first,
  /// number fma((x + 1) / 2, 65535, 0.5), as bitsandbytes' CPU code does. Therefore the code of 0
  /// decodes to 2e-5, not to 0: otherwise, without gradients, the second moment would vanish before the first one, and
  /// the next step would divide the first one by epsilon alone.
  std::vector<std::uint8_t> codes;
};

/// Code of first moments, and of QLoRA's nested scales.
const EightBitCode& signed_code();
/// Code of second moments.
const EightBitCode& unsigned_code();

}  // namespace fsdp::kernels
