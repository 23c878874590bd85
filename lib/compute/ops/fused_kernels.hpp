#pragma once
// Arguments of the fused GPU kernels that Ops launches; each makes one pass over memory where plain operators make
// many. Implementations: lib/compute/cuda/kernels; lib/compute/meta (does nothing); tests run the kernels on the CPU.
//
// Pointers are device pointers and rows are contiguous unless a stride is given. `packed`: every pointer and every row
// start at a multiple of 16 bytes, and row widths are multiples of 8 elements. The order of every sum depends on sizes
// alone. Shape suffixes: op_types.hpp.
#include <cstdint>

#include "lib/compute/ops/fused_passes.hpp"

namespace fsdp::fused {

struct Nf4 {
  Type type;
  void* out;                     ///< [elements]
  const std::uint8_t* packed;    ///< [blocks of 64, 32]
  const float* absmax;           ///< [blocks]; null with nested scales
  const std::uint8_t* codes;     ///< [blocks], codes of nested scales
  const float *nested, *offset;  ///< [blocks / 256], [1]
  std::int64_t elements;
};

/// Largest numbers of both fp8 formats, and the lower bound of a matrix's largest value (torchao's EPS).
inline constexpr float kE4m3Max = 448.0f, kE5m2Max = 57344.0f;
inline constexpr double kFp8LeastLargest = 1e-12;

/// A cast to fp8 (lib/compute/ops/products/fp8.hpp) in two passes: the largest absolute value of each thread block,
/// then the codes.
struct Fp8 {
  Type type;
  const void* x_RC;
  std::int64_t stride;  ///< elements between rows of x
  std::int64_t rows, padded_rows;
  int columns;               ///< a multiple of 16
  bool packed;               ///< every row of x starts at a multiple of 16 bytes
  bool e5m2;                 ///< false: e4m3
  int blocks;                ///< first pass: fp8_blocks(rows); second pass: sum over all parts of the matrix
  float* largest;            ///< [blocks], codes of nested scales
  float* inverse;            ///< [1], 1 / scale, written by the second pass
  std::uint8_t* rows_RC;     ///< may be null
  std::uint8_t* columns_CR;  ///< [columns, padded_rows], zero-padded; may be null
};
/// Transposes fp8 codes; rows and columns are multiples of 16.
struct Fp8Transpose {
  const std::uint8_t* rows_RC;
  std::uint8_t* columns_CR;
  std::int64_t rows, columns;
};
constexpr std::int64_t fp8_blocks(std::int64_t rows) {
  const auto blocks = (rows + 7) / 8;
  return blocks > 264 ? 264 : blocks;  // two on each of an H100's 132 multiprocessors
}

/// Destination of float32 sums: each element is set or added to, and rounded once.
struct GradTarget {
  void* data = nullptr;  ///< null: sums are discarded
  Type type = Type::f32;
  bool add = false;
};

/// Ops::add_layer_norm() and add_rms_norm().
struct Norm {
  Type type;
  void *sum_ND, *out_ND;   ///< sum_ND: null without y
  float *mean_N, *rstd_N;  ///< mean_N: null for RMSNorm
  const void *x_ND, *y_ND, *y_bias_D, *gamma_D, *beta_D;
  float eps, offset;  ///< offset: added to gamma
  bool packed;
  int dim;
  std::int64_t rows;
};

/// Backward of both norms. Column sums are first taken over the rows of each thread block.
struct NormBackwardPass {
  Type type;
  void *dx_ND, *again_ND;  ///< again_ND: recomputed output; may be null
  const void *grad_ND, *residual_ND, *x_ND, *gamma_D, *beta_D;
  const float *mean_N, *rstd_N;
  float* partial;  ///< [norm_blocks(rows), 1 or 3, dim]: gradients of gamma and, for LayerNorm, of beta and sums of dx
  float offset;
  bool packed;
  int dim;
  std::int64_t rows;
};
constexpr std::int64_t norm_blocks(std::int64_t rows) {
  const auto blocks = (rows + 15) / 16;  // few enough that adding their sums is cheap
  return blocks > 264 ? 264 : blocks;    // two on each of an H100's 132 multiprocessors
}

/// Adds the partial sums of thread blocks. \pre partial is [blocks, targets, dim]
struct ColumnSums {
  const float* partial;
  std::int64_t blocks;
  int targets, dim;
  GradTarget to[3];
};

/// Passes over rows with parameters or sums by column.
enum class ColumnPassKind : std::uint8_t { sum, add_bias, bias_gelu, bias_gelu_backward, dropout };
struct ColumnPass {
  ColumnPassKind kind;
  Type type;
  void *x_ND, *out_ND;         ///< backward: gradient, and recomputed output
  const void *y_ND, *bias_D;   ///< backward: y is the input of the activation
  const std::int64_t* keys_N;  ///< dropout only
  float probability;
  float* partial;  ///< [column_blocks(rows), dim]; null without sums
  bool packed;
  int dim;
  std::int64_t rows;
};
/// Up to 128: with the 12 strips of GPT-2, two and a third times what an H100 runs at once. Of 64 a few were left over.
constexpr std::int64_t column_blocks(std::int64_t rows) {
  const auto blocks = (rows + 63) / 64;
  return blocks > 128 ? 128 : blocks;
}

/// Ops::gated() and its backward.
struct Gated {
  Type type;
  void *out_NF, *gate_NF, *up_NF;  ///< backward: out is the output's gradient; all three are overwritten
  std::int64_t stride;             ///< elements between rows of gate and of up; out is contiguous
  bool gelu, backward, packed;
  std::int64_t rows, width;
};

/// Copies heads [B, heads, L, head_size] of any strides into columns of rows, and rotates the first rotated_heads.
struct HeadSource {
  const void* data;
  std::int64_t batch_stride, head_stride, row_stride;  ///< in elements
  int heads;
};
struct Heads {
  Type type;
  void* to_NC;
  std::int64_t to_stride;
  HeadSource parts[3];  ///< next to each other in the result; the first may alias to_NC
  int num_parts, rotated_heads, head_size;
  const float *cos_PH, *sin_PH;
  std::int64_t rows, row_length, first_position;
  const std::int32_t* positions_N;  ///< by row, each below row_length; null: first_position + t % row_length
  bool inverse, packed;
};

struct Embed {
  Type type;
  void* out_ND;
  const void *token_VD, *position_PD;
  const std::int32_t* ids_N;
  std::int64_t rows, row_length, first_position;
  const std::int32_t* positions_N;  ///< as in Heads
  int dim;
  bool packed;
};

/// Gradients of rows with equal ids are summed in float32, always in the same order, and added to the table once.
struct EmbedBackward {
  Type type;
  const void* grad_ND;
  const std::int32_t* ids_N;  ///< ids or positions; null: t % row_length
  GradTarget to;
  std::int64_t rows, row_length;
  int dim;
  bool packed;
};

struct CrossEntropy {
  Type type;
  void* logits_NV;
  const std::int32_t* targets_N;
  const float* weights_N;  ///< of the targets; may be null
  float* losses_N;         ///< not weighted
  double* sums;            ///< [2]: nats and weight; incremented
  float grad_scale;
  const float* grad_scale_at;  ///< float32 [1] that replaces grad_scale; may be null
  bool with_grad, packed;
  int vocab, width;
  std::int64_t rows;
};

struct Entropies {
  Type type;
  const void* logits_NV;
  const std::int32_t* targets_N;  ///< negative: the row is left out
  float* entropies_N;             ///< of each row's softmax, 0 where it is left out
  bool packed;
  int vocab, width;
  std::int64_t rows;
};

/// Softmax of a block of queries over the keys [first key of the block, ...) that at least one of them attends to, and
/// its backward. There is one matrix [rows, keys] for each key/value head of each sequence, with row stride `stride`.
/// Row r is query r / group of query head r % group. It attends to the `window` columns up to first_column + r / group.
struct Band {
  Type type;
  float* scores;    ///< products of queries and keys, [matrices, rows, stride]
  void* probs;      ///< written, 0 where masked; may alias scores if type is f32
  float* log_sums;  ///< [matrices, length * group]: log of sums of exp(scores); null in a forward without backward
  void* grads;      ///< backward: in: gradient of the probabilities; out: gradient of the products
  const void *out_ND, *grad_out_ND;  ///< backward: [sequences * length, heads * head_size]
  float scale, softcap;              ///< score = softcap tanh(scale x / softcap); softcap 0: scale x
  bool packed;
  int rows, keys, stride;  ///< sizes of a matrix
  int group, kv_heads, head_size;
  int first_column;  ///< column of the first query's own position
  std::int64_t matrices, length, first_query, window;
};

/// keys[b * rows_per_sample + t] = (samples[b] ^ place) + t * step.
struct DropoutKeys {
  const std::int64_t* samples;
  std::int64_t* keys;
  std::uint64_t place, step;
  std::int64_t rows, rows_per_sample;
};

/// All kernels: name and argument. A kernel is a line here, its argument above, and a definition in
/// lib/compute/cuda/kernels.
#define FSDP_FUSED_KERNELS(X)        \
  X(norm, Norm)                      \
  X(norm_backward, NormBackwardPass) \
  X(column_sums, ColumnSums)         \
  X(column_pass, ColumnPass)         \
  X(gated, Gated)                    \
  X(heads, Heads)                    \
  X(embed, Embed)                    \
  X(embed_backward, EmbedBackward)   \
  X(cross_entropy, CrossEntropy)     \
  X(entropies, Entropies)            \
  X(sum_squares, SumSquares)         \
  X(total_sum, TotalSum)             \
  X(decide_step, DecideStep)         \
  X(adamw, AdamW)                    \
  X(elementwise, Elementwise)        \
  X(blockwise, Blockwise)            \
  X(cast_shards, CastShards)         \
  X(upcast_sums, UpcastSums)         \
  X(dropout_keys, DropoutKeys)       \
  X(nf4, Nf4)                        \
  X(fp8_largest, Fp8)                \
  X(fp8_cast, Fp8)                   \
  X(fp8_transpose, Fp8Transpose)     \
  X(band_softmax, Band)              \
  X(band_softmax_backward, Band)

/// Launches kernels of one device.
class Kernels {
 public:
  virtual ~Kernels() = default;
#define FSDP_DECLARE(name, Pass) virtual void name(const Pass& pass) const = 0;
  FSDP_FUSED_KERNELS(FSDP_DECLARE)
#undef FSDP_DECLARE
};

}  // namespace fsdp::fused
