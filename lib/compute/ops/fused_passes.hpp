#pragma once
// Arguments of the fused GPU kernels of sums of squares, updates and casts, most of which take many tensors. As in
// fused_kernels.hpp, pointers are device pointers.
#include <cstdint>

#include "lib/compute/kernels/storage_type.hpp"

namespace fsdp::fused {

using kernels::Type;

inline constexpr int kTensorsOfLaunch = 32;
inline constexpr std::int64_t kBlockElements = 32768;  ///< elements of one tensor that a thread block takes
constexpr std::int64_t update_blocks(std::int64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }

struct SumSquares {
  int tensors;
  const void* data[kTensorsOfLaunch];
  Type type[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
  double* partial;  ///< [first_block[tensors]]
};
/// sum[0] = the sum of the partial sums, in order.
struct TotalSum {
  const double* partial;
  std::int64_t blocks;
  double* sum;
};

/// Decides whether a step updates parameters, and computes the divisor of its gradients.
struct DecideStep {
  const double* squares;  ///< [1]
  const double* nats;     ///< [1]
  const double* before;   ///< decision of the step before, which skips this one, too, if it is a skip; may be null
  double replicas, loss_scale, clip_norm;
  double* decision;  ///< [kDecisionSize]
};
enum DecisionPlace { kDivisor, kSkipped, kNorm, kNats, kDecisionSize };

struct AdamW {
  int tensors;
  Type cast_type;
  void* cast_params[kTensorsOfLaunch];  ///< params in the parameter dtype, written; may be null
  const double* decision;               ///< result of DecideStep; null: use grad_divisor
  float *param[kTensorsOfLaunch], *exp_avg[kTensorsOfLaunch], *exp_avg_sq[kTensorsOfLaunch];
  const void* grad[kTensorsOfLaunch];
  Type grad_type[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
  float decay_factor, grad_divisor, beta1, beta2, rest1, rest2, step_size, correction, eps;
};

/// Casts master weights to the parameter dtype.
struct CastShards {
  Type type;
  int tensors;
  void* to[kTensorsOfLaunch];
  const float* from[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
};

/// Upcasts received values to float32, where they are set or added.
struct UpcastSums {
  Type type;
  int tensors;
  float* to[kTensorsOfLaunch];
  const void* from[kTensorsOfLaunch];
  bool add[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
};

/// Updates of each element by nothing but the element, its gradient and its states, as in
/// lib/compute/kernels/optim.hpp.
enum class ElementwiseKind : std::uint8_t { sgd, lion, anyprecision };
struct Elementwise {
  ElementwiseKind kind;
  int tensors, num_states;
  Type state_types[3], cast_type;
  Type param_type[kTensorsOfLaunch];
  void *param[kTensorsOfLaunch], *states[3][kTensorsOfLaunch];
  void* cast_params[kTensorsOfLaunch];  ///< as in AdamW
  const double* decision;               ///< as in AdamW
  const void* grad[kTensorsOfLaunch];
  Type grad_type[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
  float grad_divisor, lr, weight_decay, decay_factor, numbers[8];
};

/// A quantized moment of a parameter: BlockwiseMoment and its kernels::MomentCode.
struct Moment {
  std::uint8_t* codes;  ///< null: there is none
  float* scales;
  const float *values, *thresholds;  ///< [codes_count], [codes_count - 1]
  int codes_count;                   ///< 256, or 16: two codes per byte
  bool divides;
  float least_scale;
};
/// Ops::blockwise(): one parameter by AdamW, or by Lion where there is no second moment.
struct Blockwise {
  float* param;
  const float* grad;
  Moment first, second;
  const double* edges;  ///< BlockwiseUpdate::edges; may be null
  std::int64_t elements, blocks;
  std::int64_t offset;  ///< of the first element in its block
  bool packed;          ///< elements of a lane start at multiples of 16 bytes
  float weight_decay_factor, grad_divisor, beta1, beta2, rest1, rest2, step_size, eps;
};

}  // namespace fsdp::fused
