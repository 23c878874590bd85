#pragma once
// Arguments of the optimizer kernels. Arrays are flat, one element for each parameter element of this rank unless
// stated otherwise; a kernel updates elements [begin, end). grad_scale multiplies gradients before use.
#include <cstdint>

#include "lib/compute/kernels/moment_code.hpp"

namespace fsdp::kernels {

struct SgdArgs {
  float* param;
  const float* grad;
  float* momentum_buffer;  ///< may be null
  float lr, weight_decay, grad_scale, momentum;
  bool nesterov;
};

struct LionArgs {
  float* param;
  const float* grad;
  float* exp_avg;
  float lr, weight_decay_factor;  ///< 1 - lr * weight decay
  float grad_scale, beta1, beta2;
  float rest1, rest2;  ///< 1 - beta, computed in float64
};

struct AnyPrecisionArgs {
  void* param;  ///< float32 or bf16
  const float* grad;
  void* exp_avg;              ///< float32 or bf16
  void* exp_avg_sq;           ///< float32 or bf16
  void* compensation;         ///< bf16; may be null
  float weight_decay_factor;  ///< 1 - lr * weight decay
  float grad_scale, beta1, beta2, eps;
  float rest1, rest2;      ///< 1 - beta, computed in float64
  float step_size;         ///< lr / (1 - beta1^t)
  float denom_correction;  ///< sqrt(1 - beta2^t)
};

/// A quantized moment of this rank's elements of a parameter.
struct BlockwiseMoment {
  std::uint8_t* codes = nullptr;  ///< [elements], or [elements / 2] with 4-bit codes
  float* scales = nullptr;        ///< [blocks]
  const MomentCode* code = nullptr;
};

/// AdamW or Lion with quantized moments: blocks [begin, end), counted from the block of this rank's first element.
struct BlockwiseArgs {
  bool lion = false;  ///< no second moment
  float* param = nullptr;
  const float* grad = nullptr;
  BlockwiseMoment first, second;
  const double* edges =
      nullptr;  ///< [2, 2]: largest moments of the first and last block over all ranks; null: no block is shared
  std::int64_t elements = 0, blocks = 0;
  std::int64_t block = 0;   ///< elements per block
  std::int64_t offset = 0;  ///< of this rank's first element in its block
  float weight_decay_factor = 1, grad_scale = 1, beta1 = 0, beta2 = 0;
  float rest1 = 0, rest2 = 0;  ///< 1 - beta, computed in float64
  float step_size = 0;         ///< AdamW: lr / (1 - beta1^t) * sqrt(1 - beta2^t)
  float eps = 0;               ///< eps * sqrt(1 - beta2^t)
};

/// Adafactor, rows [begin, end) of [rows, columns]; a parameter that is not a matrix is one row. A matrix has row_var
/// and col_var, other parameters have variance.
struct AdafactorArgs {
  float* param = nullptr;         ///< [rows, columns]
  const float* grad = nullptr;    ///< [rows, columns]
  float* row_var = nullptr;       ///< [rows]
  float* col_var = nullptr;       ///< [columns]
  float* variance = nullptr;      ///< [columns]
  float* exp_avg = nullptr;       ///< [rows, columns]; may be null
  double* row_sums = nullptr;     ///< [rows], written: sums of squares
  double* column_sums = nullptr;  ///< [columns]: sums of squared gradients
  std::int64_t columns = 0;
  float grad_scale = 1;
  double new_weight = 0, square_eps = 0;
  float row_scale = 1;  ///< 1 / mean(row_var)
  float least_variance = 0;
  bool separate_roots =
      false;  ///< 1 / sqrt(row) * 1 / sqrt(column) instead of 1 / sqrt(row * column), which may underflow
  float rate = 0, weight_decay_factor = 1;
  float beta1 = 0, rest1 = 1;
};

}  // namespace fsdp::kernels
