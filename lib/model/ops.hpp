#pragma once
// The fused passes of a decoder on tensors, forward and backward written out.
//
// Each function has two implementations that tests compare: CPU kernels (lib/kernels, threads by at::parallel_for) and
// plain ATen operators, which serve every other device. Gradients of parameters are *added* into the caller's buffers.
// Shape legend: N tokens, D embedding size, F feed-forward width, V padded vocabulary, L tokens per row, H heads.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::ops {

/// Uses the plain ATen implementations on the CPU too, for tests, for as long as it lives (this thread only).
class ReferenceScope {
 public:
  ReferenceScope();
  ReferenceScope(const ReferenceScope&) = delete;
  ReferenceScope& operator=(const ReferenceScope&) = delete;
  ~ReferenceScope();

 private:
  bool previous_;
};

struct NormResult {
  at::Tensor sum_ND;  ///< x + y + bias; x itself when there is no y
  at::Tensor out_ND;
  at::Tensor mean_N;  ///< float32; RMSNorm has none
  at::Tensor rstd_N;  ///< float32
  double eps = 0;
};

/// token[ids] + position[first_position + t % L].  ids_N int32; position_PD undefined: token[ids].
at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                 std::int64_t row_length, std::int64_t first_position);

/// Adds grad_ND into the rows of token and position gradients (any dtype), rows in order: deterministic.
/// \param grad_position_PD  may be null
void embed_backward(at::Tensor& grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                    const at::Tensor& ids_N, std::int64_t row_length);

/// LayerNorm of x (+ y + y_bias when y is defined).
NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps);

/// What the backward of a norm starts from.
struct NormBackward {
  const at::Tensor& grad_ND;      ///< of its output
  const at::Tensor& residual_ND;  ///< gradient that flows past the norm, added to the result; may be undefined
  const at::Tensor& x_ND;         ///< its input
  const NormResult& saved;
  const at::Tensor& gamma_D;
};

struct NormGrads {
  at::Tensor& gamma_D;   ///< float32, added to
  at::Tensor& beta_D;    ///< float32, added to
  at::Tensor* y_bias_D;  ///< float32, added to: column sums of the result; may be null
};

/// What layer_norm_backward can compute once more in the same pass, so that it need not be kept since the forward.
struct NormAgain {
  const at::Tensor& beta_D;
  at::Tensor& out_ND;  ///< receives the norm's output
};

/// Gradient of the norm's input, plus the residual's. \param again  may be null
at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again = nullptr);

/// pre_NF += bias in place; returns gelu_tanh(pre).
at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F);
/// grad_NF becomes the gradient of pre_NF in place; its column sums are added to grad_bias_F (float32).
/// \param recomputed_NF  when not null, receives gelu(pre) once more: it need not be kept since the forward
void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, at::Tensor& grad_bias_F,
                        at::Tensor* recomputed_NF = nullptr);

/// x += bias (+ y when defined), in place.
void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D);
/// sum_D (float32) += column sums of x_ND.
void add_column_sums(const at::Tensor& x_ND, at::Tensor& sum_D);

/// Zeroes elements with `probability` and scales the rest, in place; the mask depends on keys_N (int64, one per row)
/// and the column alone. Applied to a gradient it is its own backward.
void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability);

struct LossResult {
  double loss_sum = 0;      ///< nats
  std::int64_t tokens = 0;  ///< targets that count (>= 0)
};

/// Cross-entropy of logits_NV (first `vocab` of V columns are real) against targets_N (int32, negative: ignored).
/// With grad_scale != 0, logits become the gradient of grad_scale * loss_sum in place.
LossResult cross_entropy(at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab, double grad_scale);

/// x_ND @ weight_OD^T for a contiguous weight.
at::Tensor linear(const at::Tensor& x_ND, const at::Tensor& weight_OD);

}  // namespace fsdp::ops
