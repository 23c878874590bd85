#pragma once
// Arguments of the passes that Llama adds: RMSNorm, gated feed-forward and rotary positions. See kernels.hpp.
#include <cstdint>

namespace fsdp::kernels {

/// RMSNorm (Zhang, Sennrich, NeurIPS 2019): out = x / sqrt(mean(x^2) + eps) * (offset + gamma).
struct RmsNormArgs {
  void* sum_out_TD;  ///< x + y + bias; null when y is null
  void* out_TD;
  float* rstd_T;  ///< 1 / sqrt(mean(x^2) + eps)
  const void* x_TD;
  const void* y_TD;      ///< added to x first; may be null
  const void* y_bias_D;  ///< added with y; may be null
  const void* gamma_D;
  double eps;
  float offset;
  std::int64_t dim;
};

struct RmsNormBackwardArgs {
  void* grad_x_TD;  ///< residual + gradient through the norm; may alias residual or grad_out
  const void* grad_out_TD;
  const void* residual_TD;  ///< gradient that flows past the norm; may be null
  const void* x_TD;         ///< the norm's input
  const float* rstd_T;
  const void* gamma_D;
  float* grad_gamma_D;  ///< += over the rows
  float* sum_grad_x_D;  ///< += column sums of grad_x (the bias before the residual); may be null
  void* recomputed_TD;  ///< when not null, receives the norm's output once more
  float offset;
  std::int64_t dim;
};

/// SwiGLU and GeGLU (Shazeer, arXiv:2002.05202): out = act(gate) * up, with SiLU or tanh-GELU.
struct GatedArgs {
  void* out_TD;
  const void* gate_TD;
  const void* up_TD;
  std::int64_t dim;
  std::int64_t leading;  ///< elements from a row of gate, or of up, to the next; out's lie one after the other
  bool gelu;
};

struct GatedBackwardArgs {
  void* grad_TD;  ///< in: gradient of the output; out: the output once more
  void* gate_TD;  ///< in: gate; out: its gradient
  void* up_TD;    ///< in: up; out: its gradient
  std::int64_t dim;
  std::int64_t leading;
  bool gelu;
};

/// Rotary positions (Su et al., arXiv:2104.09864) in the layout of Hugging Face: element j of a head turns with element
/// j + pairs, and what lies behind 2 pairs stays. In place; the inverse rotation is the backward.
struct RopeArgs {
  void* x;  ///< [T, leading]; the first heads * head_size columns are rotated
  std::int64_t leading;
  std::int64_t heads;
  std::int64_t head_size;
  std::int64_t pairs;
  const float* cos_PH;  ///< [positions, pairs]
  const float* sin_PH;
  std::int64_t row_length;  ///< row t sits at position first_position + t % row_length
  std::int64_t first_position;
  bool inverse;
  const std::int32_t* positions_T = nullptr;  ///< where rows sit instead; null: as above
};

}  // namespace fsdp::kernels
