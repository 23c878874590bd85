#pragma once
// Arguments of the optimizers' kernels: flat arrays, elements [begin, end) of each where nothing else is said.
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
  float rest1, rest2;  ///< 1 - beta, as float64 has it
};

struct AnyPrecisionArgs {
  void* param;  ///< float32 or bf16
  const float* grad;
  void* exp_avg;              ///< float32 or bf16
  void* exp_avg_sq;           ///< float32 or bf16
  void* compensation;         ///< bf16; may be null
  float weight_decay_factor;  ///< 1 - lr * weight decay
  float grad_scale, beta1, beta2, eps;
  float rest1, rest2;      ///< 1 - beta, as float64 has it
  float step_size;         ///< lr / (1 - beta1^t)
  float denom_correction;  ///< sqrt(1 - beta2^t)
};

/// A moment of a parameter's elements on this rank.
struct BlockwiseMoment {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  ///< by block
  const MomentCode* code = nullptr;
};

/// Blocks [begin, end), counted from the one that this rank's first element is in.
struct BlockwiseArgs {
  bool lion = false;  ///< which has no second moment
  float* param = nullptr;
  const float* grad = nullptr;
  BlockwiseMoment first, second;
  const double* edges = nullptr;  ///< largest moments of the first block and of the last one; null: they are whole here
  std::int64_t elements = 0, blocks = 0;
  std::int64_t block = 0;   ///< elements in one
  std::int64_t offset = 0;  ///< of the first element in its block
  float weight_decay_factor = 1, grad_scale = 1, beta1 = 0, beta2 = 0;
  float rest1 = 0, rest2 = 0;  ///< 1 - beta, as float64 has it
  float step_size = 0;         ///< AdamW: lr / (1 - beta1^t) * sqrt(1 - beta2^t)
  float eps = 0;               ///< times that root
};

/// Rows [begin, end). Either row_var and col_var or variance.
struct AdafactorArgs {
  float* param = nullptr;
  const float* grad = nullptr;
  float* row_var = nullptr;
  float* col_var = nullptr;
  float* variance = nullptr;
  float* exp_avg = nullptr;       ///< may be null
  double* row_sums = nullptr;     ///< written: of squares, by row
  double* column_sums = nullptr;  ///< of squared gradients
  std::int64_t columns = 0;
  float grad_scale = 1;
  double new_weight = 0, square_eps = 0;
  float row_scale = 1;  ///< 1 over the mean of row_var
  float least_variance = 0;
  bool separate_roots = false;  ///< 1 / sqrt(row) * 1 / sqrt(column), not of their product: that may be zero
  float rate = 0, weight_decay_factor = 1;
  float beta1 = 0, rest1 = 1;
};

}  // namespace fsdp::kernels
