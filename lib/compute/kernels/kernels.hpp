#pragma once
// Fused CPU passes over rows of activations: everything between the matrix products of a decoder. Free of LibTorch.
//
// Every kernel works on rows [row_begin, row_end) so that the caller decides how threads share them, computes in
// float32 whatever the storage type, and touches each element once. Arrays are row-major and contiguous unless a
// leading dimension is named. Shape legend: T tokens (rows), D embedding size, V padded vocabulary, L row length of a
// causal attention, all counted in elements.
#include <cstdint>
#include <span>

#include "lib/compute/kernels/nf4_code.hpp"
#include "lib/compute/kernels/optim_args.hpp"

namespace fsdp::kernels {

struct EmbedArgs {
  void* out_TD;
  const void* token_VD;
  const void* position_LD;  ///< may be null
  const std::int32_t* ids_T;
  std::int64_t row_length;  ///< L: row t sits at position t % L, shifted by first_position
  std::int64_t first_position;
  std::int64_t dim;
  const std::int32_t* positions_T = nullptr;  ///< positions of rows; null: as above
};

struct NormArgs {
  void* sum_out_TD;  ///< x + y + bias; null when y is null
  void* out_TD;      ///< normalised, scaled, shifted
  float* mean_T;
  float* rstd_T;
  const void* x_TD;
  const void* y_TD;      ///< added to x first; may be null
  const void* y_bias_D;  ///< added with y; may be null
  const void* gamma_D;
  const void* beta_D;
  double eps;
  std::int64_t dim;
};

struct NormBackwardArgs {
  void* grad_x_TD;  ///< residual + gradient through the norm; may alias residual or grad_out
  const void* grad_out_TD;
  const void* residual_TD;  ///< gradient of the residual branch; may be null
  const void* x_TD;         ///< the norm's input
  const float* mean_T;
  const float* rstd_T;
  const void* gamma_D;
  float* grad_gamma_D;  ///< += over the rows
  float* grad_beta_D;   ///< += over the rows
  float* sum_grad_x_D;  ///< += column sums of grad_x (the bias before the residual); may be null
  std::int64_t dim;
  void* recomputed_TD = nullptr;  ///< receives the recomputed output of the norm; may be null
  const void* beta_D = nullptr;   ///< needed for recomputed_TD
};

struct GeluArgs {
  void* pre_TD;        ///< in: matmul output, out: + bias (kept for the backward)
  void* out_TD;        ///< tanh-GELU
  const void* bias_D;  ///< may be null
  std::int64_t dim;
};

struct GeluBackwardArgs {
  void* grad_TD;        ///< in: gradient of the output, out: gradient of the input
  void* recomputed_TD;  ///< receives the recomputed gelu(pre); may be null
  const void* pre_TD;
  float* sum_grad_D;  ///< += column sums of the result; may be null
  std::int64_t dim;
};

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
  const void* residual_TD;  ///< gradient of the residual branch; may be null
  const void* x_TD;         ///< the norm's input
  const float* rstd_T;
  const void* gamma_D;
  float* grad_gamma_D;  ///< += over the rows
  float* sum_grad_x_D;  ///< += column sums of grad_x (the bias before the residual); may be null
  void* recomputed_TD;  ///< receives the recomputed output of the norm; may be null
  float offset;
  std::int64_t dim;
};

/// SwiGLU and GeGLU (Shazeer, arXiv:2002.05202): out = act(gate) * up, with SiLU or tanh-GELU.
struct GatedArgs {
  void* out_TD;
  const void* gate_TD;
  const void* up_TD;
  std::int64_t dim;
  std::int64_t leading;  ///< elements between rows of gate and of up; out is contiguous
  bool gelu;
};

struct GatedBackwardArgs {
  void* grad_TD;  ///< in: gradient of the output; out: recomputed output
  void* gate_TD;  ///< in: gate; out: its gradient
  void* up_TD;    ///< in: up; out: its gradient
  std::int64_t dim;
  std::int64_t leading;
  bool gelu;
};

/// Rotary embedding (Su et al., arXiv:2104.09864) in the layout of Hugging Face: elements j and j + pairs of a head
/// rotate together, elements from 2 * pairs on do not. In place; the inverse rotation is the backward.
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
  const std::int32_t* positions_T = nullptr;  ///< positions of rows; null: as above
};

struct SoftmaxArgs {
  void* scores;             ///< [rows, leading]; row i of each L-row block keeps columns 0..i, the others become 0
  std::int64_t row_length;  ///< L
  std::int64_t leading;     ///< elements between rows, >= L
  float scale;
};

struct SoftmaxBackwardArgs {
  void* grad;  ///< in: gradient of the probabilities, out: of the unscaled scores
  const void* probs;
  std::int64_t row_length;
  std::int64_t leading;
  float scale;
};

/// A block of queries and the keys that they attend to. Row r of the scores is query r % queries, which attends to the
/// keys (last - window, last], last = first_query + r % queries, counted from the first key of the block. A score
/// becomes softcap tanh(scale score / softcap), or scale score if softcap is 0.
struct ScoreBlock {
  std::int64_t queries;
  std::int64_t keys;         ///< columns in use
  std::int64_t leading;      ///< elements between rows
  std::int64_t first_query;  ///< position of the first query, counted from the first key
  std::int64_t window;       ///< keys that a query attends to; 0: all up to its own
  float scale;
  float softcap;
};

struct BandSoftmaxArgs {
  ScoreBlock block;
  const void* scores;  ///< [rows, leading]: products of queries and keys
  void* probs;         ///< [rows, leading]; may alias scores; masked columns become 0
};

struct BandSoftmaxBackwardArgs {
  ScoreBlock block;
  void* grad;          ///< [rows, leading]; in: gradient of the probabilities; out: gradient of the products
  const void* probs;   ///< [rows, leading]: result of the forward
  const void* scores;  ///< [rows, leading]: products of queries and keys; null if softcap is 0
};

struct CrossEntropyArgs {
  void* logits_TV;               ///< in: logits; out: their gradient, when write_gradient
  const std::int32_t* target_T;  ///< negative: ignored
  const float* weight_T;         ///< 0: ignored; null: each target weighs 1
  std::int64_t vocab;            ///< real columns
  std::int64_t padded_vocab;     ///< columns in memory; the padding's gradient is 0
  float grad_scale;              ///< the gradient of (grad_scale * sum of weighted losses)
  bool write_gradient;
  double* loss_T = nullptr;  ///< receives each target's loss times its weight, 0 where it is ignored; null: not wanted
};

struct EntropyArgs {
  const void* logits_TV;
  const std::int32_t* target_T;  ///< negative: the row is left out
  std::int64_t vocab;            ///< real columns
  std::int64_t padded_vocab;     ///< columns in memory
  double* entropy_T;             ///< receives the entropy of each row's softmax, 0 where it is left out
};

/// Sums over the rows whose target is not ignored, in their order.
struct LossSum {
  double nats = 0;    ///< losses times weights
  double weight = 0;  ///< weights; the number of these rows where each weighs 1
};

struct DropoutArgs {
  void* x_TD;                  ///< scaled by 1/(1-p) or zeroed in place; the same call is its own backward
  const std::uint64_t* key_T;  ///< one key per row: what makes a mask depend on the sample, not on the rank
  float probability;
  std::int64_t dim;
};

/// Kernels of rows [row_begin, row_end) by storage type: name and argument. A kernel is a line here, its argument
/// above, and a template in one of the headers that isa.cpp includes.
#define FSDP_ROW_KERNELS(X)                         \
  X(embed, EmbedArgs)                               \
  X(layer_norm, NormArgs)                           \
  X(layer_norm_backward, NormBackwardArgs)          \
  X(bias_gelu, GeluArgs)                            \
  X(bias_gelu_backward, GeluBackwardArgs)           \
  X(causal_softmax, SoftmaxArgs)                    \
  X(causal_softmax_backward, SoftmaxBackwardArgs)   \
  X(band_softmax, BandSoftmaxArgs)                  \
  X(band_softmax_backward, BandSoftmaxBackwardArgs) \
  X(dropout, DropoutArgs)                           \
  X(rms_norm, RmsNormArgs)                          \
  X(rms_norm_backward, RmsNormBackwardArgs)         \
  X(gated, GatedArgs)                               \
  X(gated_backward, GatedBackwardArgs)              \
  X(rope, RopeArgs)

/// One table per instruction set; all take [row_begin, row_end).
struct Table {
  const char* name;
  LossSum (*cross_entropy)(Type, const CrossEntropyArgs&, std::int64_t, std::int64_t);
  void (*entropies)(Type, const EntropyArgs&, std::int64_t, std::int64_t);
  /// x[r, :] += y[r, :] + bias (y, bias may be null)
  void (*add_bias)(Type, void* x_TD, const void* y_TD, const void* bias_D, std::int64_t dim, std::int64_t,
                   std::int64_t);
  /// sum_D += column sums of x
  void (*column_sum)(Type, const void* x_TD, float* sum_D, std::int64_t dim, std::int64_t, std::int64_t);
  /// out[i] (+)= sum over the sources in their order, computed in float32; returns the float64 sum of out[i]^2.
  double (*sum_sources)(Type, float* out, const void* const* sources, int num_sources, bool accumulate, std::int64_t,
                        std::int64_t);
  /// float32 -> Type
  void (*narrow)(Type, void* out, const float* in, std::int64_t, std::int64_t);
  /// out[i] += in[i] (Type into float32)
  void (*upcast_add)(Type, float* out, const void* in, std::int64_t, std::int64_t);
  /// float64 sum of squares
  double (*sum_squares)(const float* x, std::int64_t, std::int64_t);
  /// any element inf or NaN
  bool (*has_non_finite)(const float* x, std::int64_t, std::int64_t);
  // NF4 weights, blocks [begin, end).
  void (*quantize_nf4)(const Nf4QuantizeArgs&, std::int64_t, std::int64_t);
  void (*dequantize_nf4)(Type, const Nf4Args&, std::int64_t, std::int64_t);
  /// Elementwise optimizer updates, elements [begin, end).
  std::span<const UpdateKernel> updates;
  /// Blocks [begin, end).
  void (*blockwise)(const BlockwiseArgs&, std::int64_t, std::int64_t);
  /// Writes the largest absolute new moments of a block. \param first_and_second  [2]
  void (*blockwise_largest)(const BlockwiseArgs&, std::int64_t block, double* first_and_second);
  // Adafactor, rows [begin, end). adafactor_rows updates row_var or variance and sums param^2 by row; adafactor_sizes
  // sums the squares of the update by row; adafactor_apply updates param and exp_avg.
  void (*adafactor_rows)(const AdafactorArgs&, std::int64_t, std::int64_t);
  void (*adafactor_sizes)(const AdafactorArgs&, std::int64_t, std::int64_t);
  void (*adafactor_apply)(const AdafactorArgs&, std::int64_t, std::int64_t);
  /// Sums of squared gradients, columns [begin, end) of `rows` rows.
  void (*adafactor_columns)(const AdafactorArgs&, std::int64_t rows, std::int64_t, std::int64_t);
  /// Updates columns [begin, end) of col_var; column means are scale * column_sums.
  void (*adafactor_column_means)(const AdafactorArgs&, double scale, std::int64_t, std::int64_t);
#define FSDP_DECLARE(kernel, Args) void (*kernel)(Type, const Args&, std::int64_t, std::int64_t);
  FSDP_ROW_KERNELS(FSDP_DECLARE)
#undef FSDP_DECLARE
};

/// Tables that this processor can run, slowest first. The portable one is always among them.
std::span<const Table* const> runnable_tables();

/// The fastest of runnable_tables() (avx512, avx2 or portable; on AArch64 sve or portable), or the one that the
/// environment variable FSDP_CPU_ISA names.
const Table& table();

}  // namespace fsdp::kernels
