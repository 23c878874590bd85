#pragma once
// Quantized optimizer moments: the elements of a block share a scale, and an element is stored as the index of the code
// value nearest to element / scale. Formats of bitsandbytes (Dettmers et al., 2022) and torchao
// (optim/subclass_8bit.py, subclass_4bit.py).
#include <cstdint>
#include <vector>

namespace fsdp::kernels {

enum class MomentFormat { bitsandbytes_8bit, torchao_8bit, torchao_4bit };

/// Elements per block, counted from the parameter's first element: 256, with 4-bit codes 128.
std::int64_t moment_block(MomentFormat format);
inline constexpr std::int64_t kLargestMomentBlock = 256;

struct MomentCode {
  std::vector<float> values;  ///< ascending: 256 or 16 values
  std::vector<float>
      thresholds;  ///< [values - 1], ascending: numbers in [-1, 1] from the k-th threshold on have code k + 1
  std::int64_t block = 0;
  bool packed = false;    ///< two codes per byte, the first in the high half
  bool divides = false;   ///< normalizes by division; false: by multiplication with 1 / scale
  float least_scale = 0;  ///< scale of a block of zeros

  /// Lookup table of bitsandbytes' format: EightBitCode::codes. Null for other formats, which use cells.
  const std::uint8_t* bins = nullptr;
  /// Floats that share sign, exponent and the leading mantissa bits have at most two codes, which one cell holds. The
  /// index of a cell is max(0, (bits of |x| >> shift) - first), plus `negative` if x is negative.
  struct Cell {
    float threshold;
    std::uint8_t below, rise;  ///< code below the threshold, and its increment from the threshold on
  };
  std::vector<Cell> cells;  ///< cells of all numbers in [-1, 1]
  int shift = 0;
  std::int32_t first = 0, negative = 0;
};

/// \param is_signed  code of first moments; false: of second moments
const MomentCode& moment_code(MomentFormat format, bool is_signed);

}  // namespace fsdp::kernels
