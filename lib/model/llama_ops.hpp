#pragma once
// The passes that Llama has and GPT has not: RMSNorm, SwiGLU and rotary positions. As in ops.hpp each has CPU kernels
// and plain ATen operators for every other device. Shape legend: N tokens, D embedding size, F feed-forward width, L
// tokens per row, P positions, H heads.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/model/ops.hpp"

namespace fsdp::ops {

/// RMSNorm of x (+ y + y_bias when y is defined), computed in float32 and rounded once.
NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                        const at::Tensor& gamma_D, double eps);

/// Gradient of the norm's input, plus the residual's.
/// \param grad_gamma_D   float32, added to
/// \param grad_y_bias_D  float32, added to: column sums of the result; may be null
/// \param recomputed_ND   when not null, receives the norm's output once more: it need not be kept since the forward
at::Tensor rms_norm_backward(const NormBackward& norm, at::Tensor& grad_gamma_D, at::Tensor* grad_y_bias_D = nullptr,
                             at::Tensor* recomputed_ND = nullptr);

/// silu(gate) * up
at::Tensor swiglu(const at::Tensor& gate_NF, const at::Tensor& up_NF);
/// In place: gate and up become their gradients, the output's gradient becomes the output once more.
void swiglu_backward(at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF);

/// Cosines and sines of the rotary embedding, float32 [P, head_size / 2].
struct RopeTable {
  at::Tensor cos_PH;
  at::Tensor sin_PH;
};

/// Where the tokens of x sit: row t at first_position + t % row_length.
struct RopePlace {
  std::int64_t row_length;
  std::int64_t first_position;
};

/// Turns the first heads * head_size columns of x_NC in place, by the angles of each token's position.
/// \param inverse  rotates back: the backward
void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table, const RopePlace& place,
          bool inverse);

}  // namespace fsdp::ops
