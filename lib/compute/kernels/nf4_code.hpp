#pragma once
// NF4, the 4-bit code of QLoRA (Dettmers et al., arXiv:2305.14314) in the layout of bitsandbytes: a block of 64
// elements of the flattened matrix has its largest absolute value as scale, and each element is one of 16 fractions of
// the scale. Byte k of a block holds element 2k in the high half and 2k + 1 in the low half; the last block is
// zero-padded.
#include <array>
#include <cstdint>

namespace fsdp::kernels {

inline constexpr std::int64_t kNf4Block = 64, kNf4Block_bytes = kNf4Block / 2;
/// The code of 0.
inline constexpr std::int32_t kNf4Zero = 7;

inline constexpr std::array<float, 16> kNf4Code{-1.0f,
                                                -0.6961928009986877f,
                                                -0.5250730514526367f,
                                                -0.39491748809814453f,
                                                -0.28444138169288635f,
                                                -0.18477343022823334f,
                                                -0.09105003625154495f,
                                                0.0f,
                                                0.07958029955625534f,
                                                0.16093020141124725f,
                                                0.24611230194568634f,
                                                0.33791524171829224f,
                                                0.44070982933044434f,
                                                0.5626170039176941f,
                                                0.7229568362236023f,
                                                1.0f};
/// Values above the k-th threshold have code k + 1. Midpoints of the code, with the digits of bitsandbytes' kernels.
inline constexpr std::array<float, 15> kNf4Thresholds{
    -0.8480963706970215f,  -0.6106328964233398f,   -0.4599952697753906f, -0.33967941999435425f, -0.23460739850997925f,
    -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f, 0.120255246758461f,    0.2035212516784668f,
    0.2920137643814087f,   0.3893125355243683f,    0.5016634464263916f,  0.6427869200706482f,   0.8614784479141235f};

/// Both values of each byte: [256, 2].
const std::array<float, 512>& nf4_pairs();

/// Nested scales: out[i] = code[codes[i]] * nested[(first + i) / 256] + offset. Product and sum are rounded separately,
/// as in bitsandbytes.
struct Nf4NestedArgs {
  float* out;
  const std::uint8_t* codes;
  const float* nested;  ///< scales of the scales, from the block of the first one on
  float offset;
  std::int64_t first;  ///< index of the first scale in its block of 256
};
void nf4_nested_scales(const Nf4NestedArgs& args, std::int64_t begin, std::int64_t end);

/// Quantization of all scales of a matrix.
struct Nf4NestArgs {
  std::uint8_t* codes;  ///< [n]
  float* nested;        ///< [blocks of 256]
  const float* scales;  ///< [n]
  std::int64_t n;
};
/// \return the offset: the mean of the scales, in the order in which torch adds on one thread with 256-bit vectors
/// (SumKernel.cpp, row_sum), so that it does not depend on the processor
float nf4_nest_scales(const Nf4NestArgs& args);

struct Nf4QuantizeArgs {
  std::uint8_t* packed;  ///< [blocks, 32]
  float* absmax;         ///< [blocks]
  const float* values;   ///< [elements], finite
  std::int64_t elements;
};

struct Nf4Args {
  void* out;                   ///< [elements]
  const std::uint8_t* packed;  ///< [blocks, 32]
  const float* absmax;         ///< [blocks]
  const float* pairs;          ///< nf4_pairs()
  std::int64_t elements;
};

}  // namespace fsdp::kernels
