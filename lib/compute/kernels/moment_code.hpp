#pragma once
// How an optimizer's moments are kept in few bits: blocks of elements share a scale, an element is the number of a code
// that is nearest to it over the scale. bitsandbytes (Dettmers et al., 2022) and torchao (optim/subclass_8bit.py,
// subclass_4bit.py).
#include <cstdint>
#include <vector>

namespace fsdp::kernels {

enum class MomentFormat { bitsandbytes_8bit, torchao_8bit, torchao_4bit };

/// Elements that share a scale, counted from a parameter's first: 256, of 4 bits 128.
std::int64_t moment_block(MomentFormat format);
inline constexpr std::int64_t kLargestMomentBlock = 256;

struct MomentCode {
  std::vector<float> values;      ///< ascending: 256, or 16
  std::vector<float> thresholds;  ///< [values - 1], ascending: from the k-th on a number in [-1, 1] has code k + 1
  std::int64_t block = 0;
  bool packed = false;    ///< two to a byte, the first in its high half
  bool divides = false;   ///< by the scale; else times 1 / scale
  float least_scale = 0;  ///< of a block of zeros

  /// The same as thresholds, to be looked up. bitsandbytes': EightBitCode::codes; else null, and
  const std::uint8_t* bins = nullptr;
  /// floats of one sign, exponent and first bits of mantissa have two codes at
  /// most. |x|'s bits above `shift`, minus `first` and at least 0, are a cell's number; those of numbers below zero
  /// follow from `negative` on.
  struct Cell {
    float threshold;
    std::uint8_t below, rise;  ///< code of what is less than the threshold, and what is added for the rest
  };
  std::vector<Cell> cells;  ///< of every code
  int shift = 0;
  std::int32_t first = 0, negative = 0;
};

/// \param is_signed  for first moments; else for second ones
const MomentCode& moment_code(MomentFormat format, bool is_signed);

}  // namespace fsdp::kernels
