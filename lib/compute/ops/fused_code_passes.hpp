#pragma once
// Passes between numbers and their codes of 4 and 8 bits, of fused_kernels.hpp.
#include <cstdint>

#include "lib/compute/ops/fused_update_passes.hpp"

namespace fsdp::fused {

struct Nf4 {
  Type type;
  void* out;                     ///< [elements]
  const std::uint8_t* packed;    ///< [blocks of 64, 32]
  const float* absmax;           ///< [blocks]; null: nested
  const std::uint8_t* codes;     ///< [blocks]
  const float *nested, *offset;  ///< [blocks / 256], [1]
  std::int64_t elements;
};

/// The largest numbers of both forms of 8 bits, and torchao's EPS: what a matrix of zeros has for its largest value.
inline constexpr float kE4m3Max = 448.0f, kE5m2Max = 57344.0f;
inline constexpr double kFp8LeastLargest = 1e-12;

/// A matrix into 8 bits (lib/compute/ops/fp8.hpp), in two passes: the largest absolute values of thread blocks, then
/// the codes.
struct Fp8 {
  Type type;
  const void* x_RC;
  std::int64_t stride;  ///< between its rows, in elements
  std::int64_t rows, padded_rows;
  int columns;               ///< a multiple of 16
  bool packed;               ///< every row of x begins at a multiple of 16 bytes
  bool e5m2;                 ///< else e4m3
  int blocks;                ///< of the first pass fp8_blocks(rows); of the second those of all parts of the matrix
  float* largest;            ///< [blocks]
  float* inverse;            ///< [1], written by the second pass: one over the scale
  std::uint8_t* rows_RC;     ///< null: nobody wants it
  std::uint8_t* columns_CR;  ///< [columns, padded_rows], zeros behind `rows`; null: nobody wants it
};
/// Codes by rows into codes by columns; both sides are multiples of 16.
struct Fp8Transpose {
  const std::uint8_t* rows_RC;
  std::uint8_t* columns_CR;
  std::int64_t rows, columns;
};
constexpr std::int64_t fp8_blocks(std::int64_t rows) {
  const auto blocks = (rows + 7) / 8;
  return blocks > 264 ? 264 : blocks;  // two on each of an H100's 132 multiprocessors
}

}  // namespace fsdp::fused
