#pragma once
// Transformer block of the Llama family: attention and a gated feed-forward, each with a residual connection.
// DecoderTraits choose the norms, rotary positions, attention window and gate activation.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/layers/linear_group.hpp"

namespace fsdp {

/// Cosines and sines of rotary positions, computed once for the positions used so far. Shared by the blocks of one
/// decoder; not thread-safe.
class RopeCache {
 public:
  /// \param frequencies  radians per position, see rope_frequencies()
  RopeCache(const Ops& ops, std::vector<float> frequencies) : ops_(ops), frequencies_(std::move(frequencies)) {}

  /// Returns a table for at least the positions [0, positions).
  const RopeTable& up_to(std::int64_t positions) {
    if (table_.cos_PH.defined() && table_.cos_PH.size(0) >= positions) return table_;
    // CUDA graphs keep reading the table of their capture, so shorter tables are kept. The length at least doubles, so
    // that all shorter tables together are smaller than the last one.
    if (table_.cos_PH.defined()) {
      shorter_.push_back(table_);
      positions = std::max(positions, 2 * table_.cos_PH.size(0));
    }
    constexpr std::int64_t kStep = 256;
    table_ = ops_.rope_table(frequencies_, (std::max<std::int64_t>(positions, 1) + kStep - 1) / kStep * kStep);
    return table_;
  }

 private:
  const Ops& ops_;
  std::vector<float> frequencies_;
  RopeTable table_;
  std::vector<RopeTable> shorter_;
};

/// Saved for the backward: the projected rows before the norm.
struct HeadNormState {
  NormResult q, k;
};

/// RMSNorm of queries and keys between projection and rotation, in place in the packed rows [q | k | v].
class HeadNorms {
 public:
  HeadNorms(const Ops& ops, const ModelConfig& config) : ops_(ops), config_(config) {}

  bool are_there() const { return config_.traits.head_norm != HeadNorm::none; }
  /// \param keep  receives the state for the backward pass; null if there is none
  void forward(at::Tensor& qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k, HeadNormState* keep) const;
  /// Converts gradients of the normed queries and keys to gradients of the projected ones, in place.
  void backward(at::Tensor& grad_qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k, GradSlot* grad_gamma_q,
                GradSlot* grad_gamma_k, const HeadNormState& state) const;

 private:
  struct Columns {
    std::int64_t first, heads;
  };
  Columns queries() const { return {0, config_.num_heads}; }
  Columns keys() const { return {config_.num_heads, config_.kv_heads()}; }
  at::Tensor columns_of(const at::Tensor& qkv_NC, const Columns& columns) const;
  /// Returns one row per norm: a head, or all heads of a token.
  at::Tensor rows_of(const at::Tensor& part_NC) const;

  const Ops& ops_;
  ModelConfig config_;
};

}  // namespace fsdp

namespace fsdp::detail {

/// Indices of a block's tensors among its parameters, found by name. A family has either q, k, v or qkv, and either
/// gate, up or gate_up; the unused ones keep their default. Norms: -1 if the family has none.
struct BlockPlaces {
  Linear q, k, v, qkv, o, gate, up, gate_up, down;
  int input_norm = -1, post_attention_norm = -1;  ///< around attention
  int pre_ffn_norm = -1, post_ffn_norm = -1;      ///< around the feed-forward
  int q_norm = -1, k_norm = -1;

  /// \pre the decoder's parameters are set
  BlockPlaces(const Decoder& decoder, int block);

  std::vector<Linear> qkv_group(const DecoderTraits& traits) const;
  std::vector<Linear> gate_up_group(const DecoderTraits& traits) const;
};

struct BlockState;

class GatedBlock final : public DecoderBlock {
 public:
  /// \param rope  rotary table of this kind of block: sliding blocks may have another one
  GatedBlock(const Ops& ops, const Decoder& decoder, int index, std::shared_ptr<RopeCache> rope);
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override;
  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override;
  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, LayerCache& cache, std::int64_t cache_length) const override;

 private:
  // --- forward: `keep` is null if there is no backward pass
  at::Tensor project_heads(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, BlockState* keep) const;
  /// Returns the term that attention adds to the residual; without a post-norm, join_attention() adds its bias.
  at::Tensor project_out(LayerParams p, const MicroBatch& batch, const at::Tensor& heads_NQ, BlockState* keep) const;
  /// Returns the residual sum and the input of the feed-forward.
  NormResult join_attention(LayerParams p, const at::Tensor& x_ND, at::Tensor projected_ND) const;
  at::Tensor feed_forward(LayerParams p, const MicroBatch& batch, const at::Tensor& sum_ND, at::Tensor in_ND,
                          BlockState* keep) const;
  std::pair<at::Tensor, at::Tensor> project_gate_up(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                                                    BlockState* keep) const;

  // --- backward: each maps the gradient of its output to that of its input, including the residual path
  at::Tensor feed_forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                   BlockState& s) const;
  at::Tensor attention_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                BlockState& s) const;
  /// Backward of the norm before a half of the block, if it has one. \param normed_ND  receives the half's input
  at::Tensor into_half_backward(LayerParams p, LayerGrads g, int norm, const NormBackward& around,
                                at::Tensor* normed_ND) const;
  at::Tensor post_norm(LayerParams p, int norm, const at::Tensor& x_ND, NormResult* keep) const;
  at::Tensor post_norm_backward(LayerParams p, LayerGrads g, int norm, const at::Tensor& grad_ND,
                                const NormResult& saved) const;

  GateActivation gate() const { return config_.traits.gelu ? GateActivation::gelu_tanh : GateActivation::silu; }
  AttentionShape attention_shape(const MicroBatch& batch) const;
  Rotation rotation(const MicroBatch& batch) const;
  std::vector<at::Tensor> qkv_parts(const at::Tensor& qkv_NC) const;

  const Ops& ops_;
  ModelConfig config_;
  int index_;
  BlockPlaces places_;
  LinearGroup qkv_, o_, gate_up_, down_;
  HeadNorms head_norms_;
  std::vector<int> parameters_;
  std::shared_ptr<RopeCache> rope_;
  std::string name_;
};

}  // namespace fsdp::detail
