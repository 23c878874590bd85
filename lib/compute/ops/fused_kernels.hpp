#pragma once
// One pass over a GPU's memory for what plain operators do in many: what FusedOps ask for. lib/compute/cuda/kernels
// launches them, lib/compute/meta makes nothing of them, and tests run their source on the CPU.
//
// Pointers are the device's and rows lie one after the other unless a stride is given. `packed` says that accesses of
// eight elements are at multiples of 16 bytes: every pointer, and the width of rows. Every sum is taken in an order
// that sizes alone decide. Shape legend: op_types.hpp.
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

/// Where float32 sums go: an element is set, or added to, and rounded once.
struct GradTarget {
  void* data = nullptr;  ///< null: nobody wants them
  Type type = Type::f32;
  bool add = false;
};

/// As AtenOps::add_layer_norm and add_rms_norm.
struct Norm {
  Type type;
  void *sum_ND, *out_ND;   ///< sum: null where there is no y
  float *mean_N, *rstd_N;  ///< mean: null for RMSNorm
  const void *x_ND, *y_ND, *y_bias_D, *gamma_D, *beta_D;
  float eps, offset;  ///< offset: added to gamma
  bool packed;
  int dim;
  std::int64_t rows;
};

/// As their backwards. Sums by column are first taken over the rows of a thread block.
struct NormBackwardPass {
  Type type;
  void *dx_ND, *again_ND;  ///< again: null where nobody wants it
  const void *grad_ND, *residual_ND, *x_ND, *gamma_D, *beta_D;
  const float *mean_N, *rstd_N;
  float* partial;  ///< [norm_blocks(rows), sums, dim]: of gamma; with LayerNorm of beta and dx, too
  float offset;
  bool packed;
  int dim;
  std::int64_t rows;
};
constexpr std::int64_t norm_blocks(std::int64_t rows) {
  const auto blocks = (rows + 15) / 16;  // so few that their sums cost little
  return blocks > 264 ? 264 : blocks;    // two on each of an H100's 132 multiprocessors
}

/// Adds up what thread blocks have summed. \pre partial [blocks, targets, dim]
struct ColumnSums {
  const float* partial;
  std::int64_t blocks;
  int targets, dim;
  GradTarget to[3];
};

/// Passes over rows where columns matter.
enum class ColumnPassKind : std::uint8_t { sum, add_bias, bias_gelu, bias_gelu_backward, dropout };
struct ColumnPass {
  ColumnPassKind kind;
  Type type;
  void *x_ND, *out_ND;         ///< of the backward: grad, and what is computed again
  const void *y_ND, *bias_D;   ///< of the backward: y is what stood before the activation
  const std::int64_t* keys_N;  ///< of dropout
  float probability;
  float* partial;  ///< [column_blocks(rows), dim]; null: no sums
  bool packed;
  int dim;
  std::int64_t rows;
};
constexpr std::int64_t column_blocks(std::int64_t rows) {
  const auto blocks = (rows + 63) / 64;
  return blocks > 64 ? 64 : blocks;
}

/// As AtenOps::gated and its backward.
struct Gated {
  Type type;
  void *out_NF, *gate_NF, *up_NF;  ///< of the backward: out is the output's gradient; all three are replaced
  std::int64_t stride;             ///< between rows of gate, and of up; out's lie one after the other
  bool gelu, backward, packed;
  std::int64_t rows, width;
};

/// Heads of rows as attention gives them, [B, heads, L, head_size], into columns of rows, some of them rotated.
struct HeadSource {
  const void* data;
  std::int64_t batch_stride, head_stride, row_stride;  ///< in elements
  int heads;
};
struct Heads {
  Type type;
  void* to_NC;
  std::int64_t to_stride;
  HeadSource parts[3];  ///< beside each other; the first may be where they go
  int num_parts, rotated_heads, head_size;
  const float *cos_PH, *sin_PH;
  std::int64_t rows, row_length, first_position;
  const std::int32_t* positions_N;  ///< of rows, each below row_length; null: first_position + t % row_length
  bool inverse, packed;
};

struct Embed {
  Type type;
  void* out_ND;
  const void *token_VD, *position_PD;
  const std::int32_t* ids_N;
  std::int64_t rows, row_length, first_position;
  const std::int32_t* positions_N;  ///< as of Heads
  int dim;
  bool packed;
};

/// Rows of equal ids are summed in float32, in their order, and added once.
struct EmbedBackward {
  Type type;
  const void* grad_ND;
  const std::int32_t* ids_N;  ///< or positions; null: rows are summed by t % row_length
  GradTarget to;
  std::int64_t rows, row_length;
  int dim;
  bool packed;
};

struct CrossEntropy {
  Type type;
  void* logits_NV;
  const std::int32_t* targets_N;
  float* losses_N;
  double* sums;  ///< [2]: nats and tokens, added to
  float grad_scale;
  const float* grad_scale_at;  ///< instead; null: it is the number above
  bool with_grad, packed;
  int vocab, width;
  std::int64_t rows;
};

/// Attention of a block of queries against all keys that one of them sees. Matrices lie behind each other, `stride`
/// from row to row, one for each head of keys of each sequence; its rows are those queries, the `group` heads that
/// share the keys beside each other. Query r / group sees the columns up to `first_column` + r / group, `window` of
/// them.
struct Band {
  Type type;
  float* scores;    ///< products of queries and keys
  void* probs;      ///< written: zero where a query does not see; may be the scores where the type is float32
  float* log_sums;  ///< [matrices, length * group]: of exp(scores). Of the forward null: nobody wants them
  void* grads;      ///< of the backward: of probabilities, become those of the products
  const void *out_ND, *grad_out_ND;  ///< of the backward: of all queries of these sequences
  float scale, softcap;              ///< softcap tanh(scale x / softcap); 0: scale x
  bool packed;
  int rows, keys, stride;  ///< of a matrix
  int group, kv_heads, head_size;
  int first_column;  ///< the first query's own
  std::int64_t matrices, length, first_query, window;
};

/// (samples[b] ^ place) + t * step, for t in [0, rows_per_sample).
struct DropoutKeys {
  const std::int64_t* samples;
  std::int64_t* keys;
  std::uint64_t place, step;
  std::int64_t rows, rows_per_sample;
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void norm(const Norm& pass) const = 0;
  virtual void norm_backward(const NormBackwardPass& pass) const = 0;
  virtual void column_sums(const ColumnSums& pass) const = 0;
  virtual void column_pass(const ColumnPass& pass) const = 0;
  virtual void gated(const Gated& pass) const = 0;
  virtual void heads(const Heads& pass) const = 0;
  virtual void embed(const Embed& pass) const = 0;
  virtual void embed_backward(const EmbedBackward& pass) const = 0;
  virtual void cross_entropy(const CrossEntropy& pass) const = 0;
  virtual void sum_squares(const SumSquares& pass) const = 0;
  virtual void total_sum(const TotalSum& pass) const = 0;
  virtual void decide_step(const DecideStep& pass) const = 0;
  virtual void adamw(const AdamW& pass) const = 0;
  virtual void publish(const Publish& pass) const = 0;
  virtual void widen(const Widen& pass) const = 0;
  virtual void dropout_keys(const DropoutKeys& pass) const = 0;
  virtual void nf4(const Nf4& pass) const = 0;
  virtual void fp8_largest(const Fp8& pass) const = 0;
  virtual void fp8_cast(const Fp8& pass) const = 0;
  virtual void fp8_transpose(const Fp8Transpose& pass) const = 0;
  virtual void band_softmax(const Band& pass) const = 0;
  virtual void band_softmax_backward(const Band& pass) const = 0;
};

}  // namespace fsdp::fused
