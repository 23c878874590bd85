#pragma once
// NF4, the 4-bit code of QLoRA (Dettmers et al., arXiv:2305.14314) as bitsandbytes has it: blocks of 64 elements of the
// flattened matrix share their largest absolute value, of which each element is one of 16 parts. Byte k of a block has
// element 2k in its high half and 2k + 1 in its low one; what is missing in the last block is 0.
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
/// Above the k-th of these comes code k + 1: midpoints, as bitsandbytes' kernels have them.
inline constexpr std::array<float, 15> kNf4Thresholds{
    -0.8480963706970215f,  -0.6106328964233398f,   -0.4599952697753906f, -0.33967941999435425f, -0.23460739850997925f,
    -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f, 0.120255246758461f,    0.2035212516784668f,
    0.2920137643814087f,   0.3893125355243683f,    0.5016634464263916f,  0.6427869200706482f,   0.8614784479141235f};

/// The two values of each byte.
const std::array<float, 512>& nf4_pairs();

/// Scales that are kept in 8 bits: out = code[codes] * nested[/ 256] + offset, product and sum each rounded, as
/// bitsandbytes' are.
struct Nf4NestedArgs {
  float* out;
  const std::uint8_t* codes;
  const float* nested;  ///< of the first of these scales' 256, and on
  float offset;
  std::int64_t first;  ///< number of the first of these scales in its 256
};
void nf4_nested_scales(const Nf4NestedArgs& args, std::int64_t begin, std::int64_t end);

/// The reverse, for all scales of a matrix.
struct Nf4NestArgs {
  std::uint8_t* codes;  ///< [n]
  float* nested;        ///< [blocks of 256]
  const float* scales;  ///< [n]
  std::int64_t n;
};
/// \return the offset: the scales' mean as torch computes it on one thread of a processor with vectors of 256 bits
/// (SumKernel.cpp, row_sum), so that it depends on no processor
float nf4_nest_scales(const Nf4NestArgs& args);

struct Nf4QuantizeArgs {
  std::uint8_t* packed;  ///< [blocks, 32]
  float* absmax;         ///< [blocks]
  const float* values;   ///< finite
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
