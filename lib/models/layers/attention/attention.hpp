#pragma once
// Attention as the mixer of a block: the projections of queries, keys and values, the mixing of tokens by heads, and
// the output's projection. Shapes: N tokens, D embedding size, Q the width of all query heads, C that of [q | k | v].
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/attention/qk_norms.hpp"
#include "lib/models/layers/attention/rope_cache.hpp"
#include "lib/models/layers/transformer_block.hpp"

namespace fsdp::detail {

/// Kept by heads for their backward.
struct HeadsState {
  HeadNormState norms;
  at::Tensor qkv_NC;   ///< as attention reads it
  at::Tensor out_NQ;   ///< as attention returns it
  at::Tensor grad_NQ;  ///< gradient of the heads' outputs, from the backward on
  std::unique_ptr<AttentionState> attention;
};

/// Mixes tokens: the part of attention between the projections. Implementations differ in the order of the projections'
/// columns and in how positions enter.
class Heads {
 public:
  virtual ~Heads() = default;

  /// \param projected_NC  output of the projections
  /// \param in_ND  what they have read; may be freed before attention allocates
  /// \param state  lives until the block's forward, or its backward, ends
  /// \param keep   whether there is a backward
  /// \return the heads' outputs [N, Q]
  virtual at::Tensor forward(LayerParams p, const MicroBatch& batch, at::Tensor projected_NC, at::Tensor& in_ND,
                             HeadsState& state, bool keep) const = 0;
  /// The output of forward(), from its state.
  virtual at::Tensor output(const HeadsState& state) const = 0;
  /// \return the gradient of projected_NC
  virtual at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, at::Tensor grad_NQ,
                              HeadsState& state) const = 0;
  /// Outputs for the new tokens of sequences, as DecoderBlock::decode().
  virtual at::Tensor decode(LayerParams p, const at::Tensor& projected_NC, std::span<const DecodePart> parts) const = 0;
};

/// Projections whose columns are in the order of [q | k | v], with the model's caps, windows and dropout of
/// probabilities. \param norms  of queries and keys; may be missing \param rope  null: positions come from elsewhere
std::unique_ptr<Heads> make_packed_heads(const BlockSite& site, const QkNorms& norms, std::shared_ptr<RopeCache> rope);

/// Projections whose columns hold, for each head of keys, its queries, the key and the value, with rotary positions.
std::unique_ptr<Heads> make_grouped_heads(const BlockSite& site, std::shared_ptr<RopeCache> rope);
/// The same with ALiBi in place of rotary positions. \param slopes_H  of alibi_slopes()
std::unique_ptr<Heads> make_alibi_heads(const BlockSite& site, const at::Tensor& slopes_H);
/// Slopes of ALiBi, bf16 [heads] on the device: powers of 2^(-8/n), n the largest power of two up to the heads, then
/// odd powers of its root.
at::Tensor alibi_slopes(const Ops& ops, std::int64_t heads);

/// \param in  matrices that make q, k and v, in the order of their columns; with their biases
/// \param bias  of the output's projection
std::unique_ptr<Mixer> make_attention(const BlockSite& site, const std::vector<Linear>& in, Linear out, OutputBias bias,
                                      std::unique_ptr<Heads> heads);

}  // namespace fsdp::detail
