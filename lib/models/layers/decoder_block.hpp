#pragma once
// A block of Llama's kind: attention and a gated feed-forward, each with a residual around it. Which norms stand where,
// how queries and keys are normed and turned, what a query sees and what gates, its configuration's traits say.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/models/layers/block_places.hpp"
#include "lib/models/layers/head_norms.hpp"
#include "lib/models/layers/rope_cache.hpp"

namespace fsdp::detail {

struct BlockState;

class GatedBlock final : public DecoderBlock {
 public:
  /// \param rope  of this block's kind: blocks that slide may have another
  GatedBlock(const Ops& ops, const Decoder& decoder, int index, std::shared_ptr<RopeCache> rope);
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override;
  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override;
  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, LayerCache& cache, std::int64_t cache_length) const override;

 private:
  // --- forward: `keep` null where there will be no backward
  at::Tensor project_heads(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, BlockState* keep) const;
  /// Attention's output as the residual takes it, or, where a norm stands behind both (norm2), without its bias.
  at::Tensor project_out(LayerParams p, const MicroBatch& batch, const at::Tensor& heads_NQ, BlockState* keep) const;
  /// The sum with the residual, and what the feed-forward reads.
  NormResult join_attention(LayerParams p, const at::Tensor& x_ND, at::Tensor projected_ND) const;
  at::Tensor feed_forward(LayerParams p, const MicroBatch& batch, const at::Tensor& sum_ND, at::Tensor in_ND,
                          BlockState* keep) const;
  std::pair<at::Tensor, at::Tensor> project_gate_up(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                                                    BlockState* keep) const;

  // --- backward: each takes the gradient of its output and gives that of its input, the residual's included
  at::Tensor feed_forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                   BlockState& s) const;
  at::Tensor attention_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                BlockState& s) const;
  /// Through the norm before a half of the block, or none. \param normed_ND  receives what that half read
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
