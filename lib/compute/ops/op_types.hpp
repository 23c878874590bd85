#pragma once
// Arguments and results of the operations of Ops. Suffixes give shapes: N tokens, D embedding size, F feed-forward
// width, V padded vocabulary, B sequences, L tokens of a sequence, H heads.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

/// A gradient shard; elements after the first `elements` are zero padding.
struct GradPart {
  at::Tensor grad;
  std::int64_t elements;
};

/// A cast: `to` receives the values of `from`, rounded to its own dtype. Both have the same number of elements.
struct CastShard {
  at::Tensor to, from;
};
/// An upcast: float32 `to` is set to, or incremented by, the values of `from`, which a collective delivered in another
/// dtype.
struct UpcastSum {
  at::Tensor to, from;
  bool add = false;
};

/// Bits [shift, shift + bits) of a float32, counted from the lowest, of the elements whose higher bits equal `prefix`.
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

/// Activation of the gate in a gated feed-forward.
enum class GateActivation : std::uint8_t { silu, gelu_tanh };

struct NormResult {
  at::Tensor sum_ND;  ///< x + y + bias; x itself if y is undefined
  at::Tensor out_ND;
  at::Tensor mean_N;  ///< float32; undefined for RMSNorm
  at::Tensor rstd_N;  ///< float32
  double eps = 0;
  double offset = 0;  ///< RmsNorm::offset
};

/// An NF4 matrix (lib/compute/kernels/nf4_code.hpp). The scale of block S is absmax_S where that is float32, otherwise
/// code[absmax_S] * nested_absmax[S / 256] + nested_offset (double quantization).
struct Nf4Matrix {
  at::Tensor codes_S;   ///< bytes [blocks, 32]
  at::Tensor absmax_S;  ///< float32 or bytes [blocks]
  at::Tensor nested_absmax, nested_offset;
  std::int64_t rows = 0, columns = 0;
};

/// Inputs of a norm's backward.
struct NormBackward {
  const at::Tensor& grad_ND;      ///< gradient of the norm's output
  const at::Tensor& residual_ND;  ///< gradient of the residual branch, added to the result; may be undefined
  const at::Tensor& x_ND;         ///< the norm's input
  const NormResult& saved;
  const at::Tensor& gamma_D;
};

/// Parameter gradients of a norm; null members are not computed.
struct NormGrads {
  GradSlot* gamma;
  GradSlot* beta;    ///< LayerNorm only
  GradSlot* y_bias;  ///< column sums of the gradient of x
};

/// Asks a norm's backward to recompute the norm's output in the same pass, so that the forward need not keep it.
struct NormAgain {
  at::Tensor beta_D;   ///< undefined for RMSNorm
  at::Tensor& out_ND;  ///< receives the norm's output
};

/// Cosines and sines of the rotary embedding, float32 [positions, pairs]. Elements j and j + pairs of a head rotate
/// together; elements from 2 * pairs on are not rotated.
struct RopeTable {
  at::Tensor cos_PH;
  at::Tensor sin_PH;
};

/// Token positions: row t is at first_position + t % row_length, or at positions_N[t] if positions_N is defined.
struct TokenPositions {
  std::int64_t row_length;
  std::int64_t first_position;
  at::Tensor positions_N = {};  ///< int32, each below row_length; may be undefined
};

/// The rotary embedding that was applied to queries and keys.
struct Rotation {
  const RopeTable& table;
  TokenPositions place;
};

/// Multiplier that spreads the index of a dropout over 64 bits; odd, so that different indices stay different.
inline constexpr std::uint64_t kDropoutIndexSpread = 0xd1342543de82ef95u;

/// Seeds of a dropout mask, which depends on the sample, the dropout's index in the model and the element, and on
/// nothing else: neither on the sharding nor on the batch size.
struct DropoutSeeds {
  at::Tensor sample_keys_B;  ///< int64 [B], on the host; undefined: no dropout
  std::uint64_t place = 0;   ///< index times kDropoutIndexSpread: close keys would give shifted copies of a mask
};

struct AttentionShape {
  std::int64_t rows;          ///< B: sequences in the micro-batch
  std::int64_t query_length;  ///< L: queries per sequence
  std::int64_t heads;         ///< H: query heads
  std::int64_t head_size;
  /// Key/value heads, each shared by heads / kv_heads query heads (grouped-query attention, Ainslie et al.,
  /// arXiv:2305.13245); 0 means `heads`.
  std::int64_t kv_heads = 0;
  double dropout = 0;  ///< probability, applied to the attention probabilities
  DropoutSeeds dropout_place = {};
  double scale = 0;                  ///< factor of the scores; 0: head_size^-1/2
  double softcap = 0;                ///< scaled scores become softcap tanh(score / softcap); 0: no cap
  std::int64_t window = 0;           ///< positions that a query attends to, its own included; 0: all earlier ones
  const Packing* packing = nullptr;  ///< documents packed into the rows; null: each row is one sequence
  /// Keys per sequence; 0: as many as queries. Ops::attention() has the keys of its rows; generation has earlier ones,
  /// too (cached_attention()).
  std::int64_t key_length = 0;
  std::int64_t first_query = 0;  ///< place of the first query among the keys; it attends to keys up to its own

  std::int64_t keys() const { return key_length == 0 ? query_length : key_length; }
  /// True for plain causal attention: no cap, and no window that is shorter than the row.
  bool is_plain() const { return softcap == 0 && (window == 0 || window >= keys()); }
  std::int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  /// Query heads per head of keys.
  std::int64_t group() const { return heads / key_heads(); }
  /// Columns of a row of [q | k | v].
  std::int64_t packed_width() const { return (heads + 2 * key_heads()) * head_size; }
};

/// Tensors that attention keeps for its backward besides its input and output. The kernel that ran fills its own.
struct AttentionState {
  /// Log of the sum of exp(scores) of each query, float32: by this, results over different keys can be merged.
  /// [B, heads, L]; in blocks [B * kv_heads, L * group]; of documents in one kernel [heads, N]. Undefined where the
  /// probabilities are kept, and on the CPU with a window or a cap, where the backward computes both again.
  at::Tensor log_sums;
  at::Tensor probs_BHLL;                  ///< all scores at once: before dropout
  at::Tensor slope_BHLL;                  ///< float32: derivative of the cap
  at::Tensor mask_BHLL;                   ///< float32: of dropout
  at::Tensor random_seed, random_offset;  ///< of PyTorch's kernels, here and below
  at::Tensor first_queries, first_keys;   ///< ragged batches only
  std::int64_t most_queries = 0, most_keys = 0;
  std::vector<std::unique_ptr<AttentionState>> documents;  ///< packed rows, each document on its own
};

}  // namespace fsdp
