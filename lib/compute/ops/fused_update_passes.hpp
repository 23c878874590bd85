#pragma once
// Passes over many tensors at once, of those in fused_kernels.hpp: the gradients' squares, what a step is decided by,
// AdamW, and master weights as models take them.
#include <cstdint>

namespace fsdp::fused {

enum class Type : std::uint8_t { f32, bf16, fp16 };

inline constexpr int kTensorsOfLaunch = 32;
inline constexpr std::int64_t kBlockElements = 32768;  ///< counted from each tensor's first
constexpr std::int64_t update_blocks(std::int64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }

struct SumSquares {
  int tensors;
  const float* data[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
  double* partial;  ///< [first_block[tensors]]
};
/// sum[0] = the partial sums, in order.
struct TotalSum {
  const double* partial;
  std::int64_t blocks;
  double* sum;
};

/// Whether a step updates anything, and by how much its gradients are divided.
struct DecideStep {
  const double* squares;  ///< [1]
  const double* nats;     ///< [1]
  double replicas, loss_scale, clip_norm;
  double* decision;  ///< [kDecisionSize]
};
enum DecisionPlace { kDivisor, kSkipped, kNorm, kNats, kDecisionSize };

struct AdamW {
  int tensors;
  Type published_type;
  void* published[kTensorsOfLaunch];  ///< the same elements as models take them; null: nobody wants them
  const double* decision;             ///< of DecideStep; null: grad_divisor
  float *param[kTensorsOfLaunch], *exp_avg[kTensorsOfLaunch], *exp_avg_sq[kTensorsOfLaunch];
  const float* grad[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
  float decay_factor, grad_divisor, beta1, beta2, rest1, rest2, step_size, correction, eps;
};

/// Master weights as models take them.
struct Publish {
  Type type;
  int tensors;
  void* to[kTensorsOfLaunch];
  const float* from[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
};

/// Sums that arrived in another type, set or added to float32.
struct Widen {
  Type type;
  int tensors;
  float* to[kTensorsOfLaunch];
  const void* from[kTensorsOfLaunch];
  bool add[kTensorsOfLaunch];
  std::int64_t elements[kTensorsOfLaunch];
  std::int64_t first_block[kTensorsOfLaunch + 1];
};

}  // namespace fsdp::fused
