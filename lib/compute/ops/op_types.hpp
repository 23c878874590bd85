#pragma once
// What operations take and give. Shape legend: N tokens, D embedding size, F feed-forward width, V padded vocabulary,
// B sequences, L tokens of a sequence, H heads.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

/// A gradient and how many of its first elements count: the rest is padding, zero.
struct GradPart {
  at::Tensor grad;
  std::int64_t elements;
};

/// As many elements of both, of types of their own.
struct PublishedRows {
  at::Tensor to, from;
};
/// to = from, or to += from: float32 of what travelled in another type.
struct WidenedRows {
  at::Tensor to, from;
  bool add = false;
};

/// `bits` bits of a float32 from bit `shift` on, of elements that begin with the bits of `prefix`.
struct BitRange {
  std::uint32_t prefix;
  int shift, bits;
};

/// RMSNorm: x / sqrt(mean(x^2) + eps) * (offset + gamma).
struct RmsNorm {
  RmsNorm(double epsilon, double gamma_offset = 0) : eps(epsilon), offset(gamma_offset) {}
  double eps;
  double offset;
};

/// What the gate of a feed-forward goes through before it multiplies.
enum class GateActivation : std::uint8_t { silu, gelu_tanh };

struct NormResult {
  at::Tensor sum_ND;  ///< x + y + bias; x itself when there is no y
  at::Tensor out_ND;
  at::Tensor mean_N;  ///< float32; RMSNorm has none
  at::Tensor rstd_N;  ///< float32
  double eps = 0;
  double offset = 0;  ///< RmsNorm::offset
};

/// A matrix in 4 bits: lib/compute/kernels/nf4_code.hpp. Scales of blocks are absmax_S itself where that is float32,
/// else code[absmax_S] * nested_absmax[S / 256] + nested_offset.
struct Nf4Matrix {
  at::Tensor codes_S;   ///< bytes [blocks, 32]
  at::Tensor absmax_S;  ///< float32 or bytes [blocks]
  at::Tensor nested_absmax, nested_offset;
  std::int64_t rows = 0, columns = 0;
};

/// What the backward of a norm starts from.
struct NormBackward {
  const at::Tensor& grad_ND;      ///< of its output
  const at::Tensor& residual_ND;  ///< gradient that flows past the norm, added to the result; may be undefined
  const at::Tensor& x_ND;         ///< its input
  const NormResult& saved;
  const at::Tensor& gamma_D;
};

/// Null: nobody wants it.
struct NormGrads {
  GradSlot* gamma;
  GradSlot* beta;    ///< of LayerNorm
  GradSlot* y_bias;  ///< column sums of the result
};

/// What a norm's backward can compute once more in the same pass, so that it need not be kept since the forward.
struct NormAgain {
  at::Tensor beta_D;   ///< undefined for RMSNorm
  at::Tensor& out_ND;  ///< receives the norm's output
};

/// Cosines and sines of the rotary embedding, float32 [positions, pairs]: of a head of head_size elements the first
/// 2 pairs turn, element j with element j + pairs.
struct RopeTable {
  at::Tensor cos_PH;
  at::Tensor sin_PH;
};

/// Where the tokens of x sit: row t at first_position + t % row_length, or where positions_N says.
struct RopePlace {
  std::int64_t row_length;
  std::int64_t first_position;
  at::Tensor positions_N = {};  ///< int32, each below row_length; undefined: as above
};

/// How queries and keys have been turned.
struct Rotation {
  const RopeTable& table;
  RopePlace place;
};

/// Odd, so that numbers of places stay distinct when they are multiplied with it.
inline constexpr std::uint64_t kDropoutPlaceSpread = 0xd1342543de82ef95u;

/// Which elements a dropout takes: a mask depends on sample, place in the model and element, on nothing else.
struct DropoutPlace {
  at::Tensor sample_keys_B;  ///< int64, on the host; undefined: no dropout
  std::uint64_t place = 0;   ///< spread over all bits: keys close to each other would give shifted copies of a mask
};

struct AttentionShape {
  std::int64_t rows;    ///< B: sequences in the micro-batch
  std::int64_t length;  ///< L: tokens per sequence
  std::int64_t heads;   ///< H: of queries
  std::int64_t head_size;
  /// Heads of keys and values, each shared by heads / kv_heads heads of queries (Ainslie et al., arXiv:2305.13245);
  /// 0: heads.
  std::int64_t kv_heads = 0;
  double dropout = 0;  ///< on the probabilities
  DropoutPlace dropout_place = {};
  double scale = 0;                  ///< of the scores; 0: head_size^-1/2
  double softcap = 0;                ///< scaled scores become softcap tanh(score / softcap); 0: they stay
  std::int64_t window = 0;           ///< a query sees so many positions, its own included; 0: all before it
  const Packing* packing = nullptr;  ///< documents that share the rows, none of which sees another; null: none do

  /// Causal and no more than that: kernels that know nothing else serve.
  bool is_plain() const { return softcap == 0 && (window == 0 || window >= length); }
  std::int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  /// Query heads per head of keys.
  std::int64_t group() const { return heads / key_heads(); }
  /// Columns of a row of [q | k | v].
  std::int64_t packed_width() const { return (heads + 2 * key_heads()) * head_size; }
};

/// What an attention keeps for its backward besides its input and output: each implementation's own.
struct AttentionState {
  virtual ~AttentionState() = default;
};

}  // namespace fsdp
