#pragma once
// Arguments of the optimizer kernels. Arrays are flat, one element for each parameter element of this rank unless
// stated otherwise; a kernel updates elements [begin, end). grad_scale multiplies gradients before use.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lib/compute/kernels/moment_code.hpp"
#include "lib/compute/kernels/storage_type.hpp"

namespace fsdp::kernels {

/// An array of a parameter, float32 or bf16; null: there is none.
struct UpdatedArray {
  void* data = nullptr;
  Type type = Type::f32;
};

/// Arguments of an elementwise update: those of every optimizer, and numbers that each optimizer defines for itself.
struct UpdateArgs {
  UpdatedArray param;
  const float* grad = nullptr;
  std::array<UpdatedArray, 3> states;
  float lr = 0, weight_decay = 0;
  float decay_factor = 1;  ///< 1 - lr * weight decay, computed in float64
  float grad_scale = 1;
  std::array<float, 8> numbers{};

  float* floats_of_param() const { return static_cast<float*>(param.data); }
  float* floats_of_state(std::size_t s) const { return static_cast<float*>(states[s].data); }
};

struct UpdateKernel {
  std::string_view name;
  void (*run)(const UpdateArgs&, std::int64_t begin, std::int64_t end);
  bool takes_bf16 = false;  ///< else every array is float32
};

/// A quantized moment of this rank's elements of a parameter.
struct Moment {
  std::uint8_t* codes = nullptr;  ///< [elements], or [elements / 2] with 4-bit codes
  float* scales = nullptr;        ///< [blocks]
  const MomentCode* code = nullptr;
};

/// AdamW or Lion with quantized moments: blocks [begin, end), counted from the block of this rank's first element.
struct BlockwiseArgs {
  bool lion = false;  ///< no second moment
  float* param = nullptr;
  const float* grad = nullptr;
  Moment first, second;
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
