// Llama-family decoders: token embedding, gated blocks, head.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/linear_group.hpp"
#include "lib/models/layers/rope_cache.hpp"
#include "lib/models/layers/token_adapters.hpp"

namespace fsdp {

/// Saved for the backward: the projected rows before the norm.
struct HeadNormState {
  NormResult q, k;
};

/// RMSNorm of queries and keys between projection and rotation, in place in the packed rows [q | k | v].
class QkNorms {
 public:
  QkNorms(const Ops& ops, const ModelConfig& config) : ops_(ops), config_(config) {}

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
struct BlockIndices {
  Linear q, k, v, qkv, o, gate, up, gate_up, down;
  int input_norm = -1, post_attention_norm = -1;  ///< around attention
  int pre_ffn_norm = -1, post_ffn_norm = -1;      ///< around the feed-forward
  int q_norm = -1, k_norm = -1;

  /// \pre the decoder's parameters are set
  BlockIndices(const Decoder& decoder, int block);

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

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override;
  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override;
  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, std::span<const DecodePart> parts) const override;

 private:
  // --- forward: `keep` is null if there is no backward pass
  at::Tensor project_heads(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, BlockState* keep) const;
  /// Rotates queries and keys by the positions of the batch's tokens, in place.
  void rotate(at::Tensor& qkv_NC, const MicroBatch& batch) const;
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
  std::vector<at::Tensor> qkv_parts(const at::Tensor& qkv_NC) const;

  const Ops& ops_;
  ModelConfig config_;
  int index_;
  BlockIndices places_;
  LinearGroup qkv_, o_, gate_up_, down_;
  QkNorms head_norms_;
  std::vector<int> parameters_;
  std::shared_ptr<RopeCache> rope_;
  std::int64_t longest_row_;
  std::string name_;
};

BlockIndices::BlockIndices(const Decoder& decoder, int block) {
  const ParameterFinder finder(decoder, block, "model.layers." + std::to_string(block) + ".");
  const auto& config = decoder.config;
  const auto& traits = config.traits;
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  const auto queries = config.num_heads * config.head_width(), keys = config.kv_heads() * config.head_width();
  if (traits.fused_projections) {
    qkv = finder.linear("self_attn.qkv_proj", queries + 2 * keys, d);
    gate_up = finder.linear("mlp.gate_up_proj", 2 * f, d);
  } else {
    q = finder.linear("self_attn.q_proj", queries, d);
    k = finder.linear("self_attn.k_proj", keys, d);
    v = finder.linear("self_attn.v_proj", keys, d);
    gate = finder.linear("mlp.gate_proj", f, d);
    up = finder.linear("mlp.up_proj", f, d);
  }
  o = finder.linear("self_attn.o_proj", d, queries);
  down = finder.linear("mlp.down_proj", d, f);
  q_norm = finder.find("self_attn.q_norm.weight");
  k_norm = finder.find("self_attn.k_norm.weight");
  // post_attention_layernorm is Llama's norm before the feed-forward; families with post-norms use the name for theirs.
  const int after_attention = finder.find("post_attention_layernorm.weight");
  input_norm = finder.find("input_layernorm.weight");
  post_attention_norm = traits.post_norms ? after_attention : -1;
  pre_ffn_norm = traits.post_norms ? finder.find("pre_feedforward_layernorm.weight") : after_attention;
  post_ffn_norm = finder.find("post_feedforward_layernorm.weight");
}

std::vector<Linear> BlockIndices::qkv_group(const DecoderTraits& traits) const {
  if (traits.fused_projections) return {qkv};
  return {q, k, v};
}

std::vector<Linear> BlockIndices::gate_up_group(const DecoderTraits& traits) const {
  if (traits.fused_projections) return {gate_up};
  return {gate, up};
}

}  // namespace fsdp::detail

namespace fsdp {

at::Tensor QkNorms::columns_of(const at::Tensor& qkv_NC, const Columns& columns) const {
  const auto width = config_.head_width();
  return qkv_NC.narrow(1, columns.first * width, columns.heads * width);
}

at::Tensor QkNorms::rows_of(const at::Tensor& part_NC) const {
  const auto packed = part_NC.contiguous();
  return config_.traits.head_norm == HeadNorm::per_head ? packed.view({-1, config_.head_width()}) : packed;
}

void QkNorms::forward(at::Tensor& qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k,
                      HeadNormState* keep) const {
  const auto kind = detail::rms_norm_of(config_);
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, NormResult* kept) {
    const auto part = columns_of(qkv_NC, columns);
    auto result = ops_.add_rms_norm(rows_of(part), {}, {}, gamma, kind);
    part.copy_(result.out_ND.view(part.sizes()));
    if (kept == nullptr) return;
    result.out_ND.reset();
    *kept = std::move(result);
  };
  norm(queries(), gamma_q, keep == nullptr ? nullptr : &keep->q);
  norm(keys(), gamma_k, keep == nullptr ? nullptr : &keep->k);
}

void QkNorms::backward(at::Tensor& grad_qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k,
                       GradSlot* grad_gamma_q, GradSlot* grad_gamma_k, const HeadNormState& state) const {
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, GradSlot* grad_gamma,
                        const NormResult& saved) {
    const auto part = columns_of(grad_qkv_NC, columns);
    const auto grad = rows_of(part);
    const auto result = ops_.rms_norm_backward({grad, {}, saved.sum_ND, saved, gamma}, {grad_gamma, nullptr, nullptr});
    part.copy_(result.view(part.sizes()));
  };
  norm(queries(), gamma_q, grad_gamma_q, state.q);
  norm(keys(), gamma_k, grad_gamma_k, state.k);
}

}  // namespace fsdp

namespace fsdp::detail {

struct BlockState final : LayerState {
  at::Tensor x_ND;  ///< the block's input
  NormResult norm1;
  HeadNormState head_norms;
  at::Tensor qkv_NC;  ///< rows of [q | k | v], after head norms and rotation
  std::unique_ptr<AttentionState> attention;
  at::Tensor heads_NQ;    ///< attention output before its projection
  NormResult post_norm1;  ///< norm after attention
  NormResult norm2;       ///< sum_ND: input plus attention
  at::Tensor gate_NF, up_NF;
  at::Tensor gate_up_N2F;  ///< gate and up, if they are one product
  NormResult post_norm2;   ///< norm after the feed-forward
  LinearState qkv_state, o_state, gate_up_state, down_state;
  // The outputs of the norms and of the gate are not saved: the backward passes recompute them.
};

namespace {

at::Tensor at_place(LayerParams p, int place) { return place < 0 ? at::Tensor() : p[static_cast<std::size_t>(place)]; }
GradSlot* at_place(LayerGrads g, int place) { return place < 0 ? nullptr : g[static_cast<std::size_t>(place)]; }

/// Returns a number that identifies the dropout of a group of matrices.
std::uint64_t dropout_place(int index, std::uint64_t group) {
  return static_cast<std::uint64_t>(index + 1) * 4 + group;
}

}  // namespace

GatedBlock::GatedBlock(const Ops& ops, const Decoder& decoder, int index, std::shared_ptr<RopeCache> rope)
    : ops_(ops),
      config_(decoder.config),
      index_(index),
      places_(decoder, index),
      qkv_(ops, decoder.options, places_.qkv_group(config_.traits), dropout_place(index, 0)),
      o_(ops, decoder.options, {places_.o}, dropout_place(index, 1)),
      gate_up_(ops, decoder.options, places_.gate_up_group(config_.traits), dropout_place(index, 2)),
      down_(ops, decoder.options, {places_.down}, dropout_place(index, 3)),
      head_norms_(ops, config_),
      parameters_(block_parameters(decoder, index)),
      rope_(std::move(rope)),
      longest_row_(longest_row(config_)),
      name_("block " + std::to_string(index)) {}

at::Tensor GatedBlock::forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND,
                               std::unique_ptr<LayerState>* state) {
  const auto& batch = step.batch;
  BlockState s;
  auto* keep = state != nullptr ? &s : nullptr;
  s.x_ND = x_ND;
  if (places_.input_norm >= 0)
    s.norm1 = ops_.add_rms_norm(x_ND, {}, {}, at_place(p, places_.input_norm), rms_norm_of(config_));
  s.qkv_NC = project_heads(p, batch, places_.input_norm >= 0 ? s.norm1.out_ND : x_ND, keep);
  rotate(s.qkv_NC, batch);
  s.norm1.out_ND.reset();
  s.heads_NQ = ops_.attention(s.qkv_NC, attention_shape(batch), keep ? &s.attention : nullptr);
  if (keep == nullptr) s.qkv_NC.reset();
  s.norm2 = join_attention(p, x_ND, project_out(p, batch, s.heads_NQ, keep));
  auto out_ND = feed_forward(p, batch, s.norm2.sum_ND, std::move(s.norm2.out_ND), keep);
  if (keep != nullptr) *state = std::make_unique<BlockState>(std::move(s));
  return out_ND;
}

at::Tensor GatedBlock::decode(LayerParams p, const at::Tensor& x_ND, std::span<const DecodePart> parts) const {
  const MicroBatch batch{{}, {}, 1, x_ND.size(0), {}, 0};
  at::Tensor in_ND = x_ND;
  if (places_.input_norm >= 0)
    in_ND = ops_.add_rms_norm(x_ND, {}, {}, at_place(p, places_.input_norm), rms_norm_of(config_)).out_ND;
  const auto qkv_NC = project_heads(p, batch, in_ND, nullptr);
  const auto of_part = [](const DecodePart& part) { return MicroBatch{{}, {}, 1, part.tokens, {}, part.cache_length}; };
  const auto rotated = [&](at::Tensor rows_NC, const DecodePart& part) {
    rotate(rows_NC, of_part(part));
    return rows_NC;
  };
  const auto heads_NQ = attend_by_parts(qkv_NC, parts, rotated, [&](const at::Tensor& rows_NC, const DecodePart& part) {
    auto shape = attention_shape(of_part(part));
    shape.window = config_.traits.slides(index_) ? config_.traits.window : 0;
    return cached_attention(rows_NC, shape, *part.cache, part.cache_length, longest_row_);
  });
  const auto joined = join_attention(p, x_ND, project_out(p, batch, heads_NQ, nullptr));
  return feed_forward(p, batch, joined.sum_ND, joined.out_ND, nullptr);
}

// --- attention

at::Tensor GatedBlock::project_heads(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                                     BlockState* keep) const {
  const auto shape = attention_shape(batch);
  auto qkv_NC = at::empty({x_ND.size(0), shape.packed_width()}, x_ND.options());
  auto parts = qkv_parts(qkv_NC);
  qkv_.forward(p, batch, x_ND, parts, keep ? &keep->qkv_state : nullptr, qkv_.biases(p));
  if (head_norms_.are_there())
    head_norms_.forward(qkv_NC, at_place(p, places_.q_norm), at_place(p, places_.k_norm),
                        keep ? &keep->head_norms : nullptr);
  return qkv_NC;
}

void GatedBlock::rotate(at::Tensor& qkv_NC, const MicroBatch& batch) const {
  if (qkv_NC.size(0) == 0) return;
  const auto shape = attention_shape(batch);
  const auto turned = rope_->rotation(batch);
  // Keys follow the queries, so their heads are rotated in the same pass.
  ops_.rope(qkv_NC, shape.heads + shape.key_heads(), shape.head_size, turned.table, turned.place, false);
}

at::Tensor GatedBlock::project_out(LayerParams p, const MicroBatch& batch, const at::Tensor& heads_NQ,
                                   BlockState* keep) const {
  auto projected_ND = o_.project(p, batch, heads_NQ, keep ? &keep->o_state : nullptr);
  if (places_.post_attention_norm < 0) return projected_ND;
  if (places_.o.bias >= 0) ops_.add_bias(projected_ND, {}, at_place(p, places_.o.bias));
  return post_norm(p, places_.post_attention_norm, projected_ND, keep ? &keep->post_norm1 : nullptr);
}

NormResult GatedBlock::join_attention(LayerParams p, const at::Tensor& x_ND, at::Tensor projected_ND) const {
  const auto bias = places_.post_attention_norm < 0 ? at_place(p, places_.o.bias) : at::Tensor();
  if (places_.pre_ffn_norm >= 0)
    return ops_.add_rms_norm(x_ND, projected_ND, bias, at_place(p, places_.pre_ffn_norm), rms_norm_of(config_));
  NormResult joined;
  ops_.add_bias(projected_ND, x_ND, bias);
  joined.sum_ND = joined.out_ND = std::move(projected_ND);
  return joined;
}

at::Tensor GatedBlock::attention_backward(LayerParams p, LayerGrads g, const MicroBatch& batch,
                                          const at::Tensor& grad_ND, BlockState& s) const {
  const auto shape = attention_shape(batch);
  at::Tensor grad_heads_NQ;
  {
    const std::array grads_o{places_.post_attention_norm < 0
                                 ? grad_ND
                                 : post_norm_backward(p, g, places_.post_attention_norm, grad_ND, s.post_norm1)};
    s.post_norm1 = {};
    grad_heads_NQ = o_.backward_input(p, g, batch, grads_o, s.o_state);
    o_.backward_weights(p, g, batch, grads_o, s.heads_NQ, s.o_state);
  }
  auto grad_qkv_NC = ops_.rotary_attention_backward(grad_heads_NQ, s.qkv_NC, s.heads_NQ, shape, std::move(s.attention),
                                                    rope_->rotation(batch));
  s.qkv_NC.reset();
  s.heads_NQ.reset();
  if (head_norms_.are_there()) {
    head_norms_.backward(grad_qkv_NC, at_place(p, places_.q_norm), at_place(p, places_.k_norm),
                         at_place(g, places_.q_norm), at_place(g, places_.k_norm), s.head_norms);
    s.head_norms = {};
  }
  const auto parts = qkv_parts(grad_qkv_NC);
  auto grad_in_ND = qkv_.backward_input(p, g, batch, parts, s.qkv_state);
  at::Tensor in_ND;
  auto grad_x_ND = into_half_backward(p, g, places_.input_norm, {grad_in_ND, grad_ND, s.x_ND, s.norm1, {}},
                                      qkv_.needs_input(g) ? &in_ND : nullptr);
  qkv_.backward_weights(p, g, batch, parts, in_ND, s.qkv_state);
  return grad_x_ND;
}

// --- feed-forward

at::Tensor GatedBlock::feed_forward(LayerParams p, const MicroBatch& batch, const at::Tensor& sum_ND, at::Tensor in_ND,
                                    BlockState* keep) const {
  auto [gate_NF, up_NF] = project_gate_up(p, batch, in_ND, keep);
  in_ND.reset();
  auto act_NF = ops_.gated(gate(), gate_NF, up_NF);
  if (keep != nullptr) {
    keep->gate_NF = gate_NF;
    keep->up_NF = up_NF;
  }
  gate_NF.reset(), up_NF.reset();
  auto out_ND = down_.project(p, batch, act_NF, keep ? &keep->down_state : nullptr);
  if (places_.post_ffn_norm < 0) {
    ops_.add_bias(out_ND, sum_ND, at_place(p, places_.down.bias));
    return out_ND;
  }
  if (places_.down.bias >= 0) ops_.add_bias(out_ND, {}, at_place(p, places_.down.bias));
  auto normed_ND = post_norm(p, places_.post_ffn_norm, out_ND, keep ? &keep->post_norm2 : nullptr);
  ops_.add_bias(normed_ND, sum_ND, {});
  return normed_ND;
}

std::pair<at::Tensor, at::Tensor> GatedBlock::project_gate_up(LayerParams p, const MicroBatch& batch,
                                                              const at::Tensor& x_ND, BlockState* keep) const {
  auto outs = gate_up_.make_outputs(p, x_ND);
  gate_up_.forward(p, batch, x_ND, outs, keep ? &keep->gate_up_state : nullptr, gate_up_.biases(p));
  if (outs.size() == 2) return {outs[0], outs[1]};
  if (keep != nullptr) keep->gate_up_N2F = outs[0];
  const auto f = config_.ffn_hidden_size;
  return {outs[0].narrow(1, 0, f), outs[0].narrow(1, f, f)};
}

at::Tensor GatedBlock::feed_forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch,
                                             const at::Tensor& grad_ND, BlockState& s) const {
  // Input gradients come first, because their passes recompute the activations that weight gradients need.
  {
    const std::array grads_down{
        places_.post_ffn_norm < 0 ? grad_ND : post_norm_backward(p, g, places_.post_ffn_norm, grad_ND, s.post_norm2)};
    s.post_norm2 = {};
    auto act_NF = down_.backward_input(p, g, batch, grads_down, s.down_state);
    ops_.gated_backward(gate(), act_NF, s.gate_NF, s.up_NF);  // act: recomputed output; gate, up: their gradients
    down_.backward_weights(p, g, batch, grads_down, act_NF, s.down_state);
  }
  std::vector<at::Tensor> grads_gate_up;
  if (s.gate_up_N2F.defined()) {
    grads_gate_up.push_back(std::move(s.gate_up_N2F));
    s.gate_NF.reset(), s.up_NF.reset();
  } else {
    grads_gate_up.push_back(std::move(s.gate_NF));
    grads_gate_up.push_back(std::move(s.up_NF));
  }
  auto grad_in_ND = gate_up_.backward_input(p, g, batch, grads_gate_up, s.gate_up_state);
  at::Tensor in_ND;
  auto grad_sum_ND = into_half_backward(p, g, places_.pre_ffn_norm, {grad_in_ND, grad_ND, s.norm2.sum_ND, s.norm2, {}},
                                        gate_up_.needs_input(g) ? &in_ND : nullptr);
  grad_in_ND.reset();
  s.norm2 = {};
  gate_up_.backward_weights(p, g, batch, grads_gate_up, in_ND, s.gate_up_state);
  return grad_sum_ND;
}

at::Tensor GatedBlock::backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                                std::unique_ptr<LayerState> state) {
  const auto& batch = step.batch;
  auto& s = static_cast<BlockState&>(*state);
  const auto grad_sum_ND = feed_forward_backward(p, g, batch, grad_ND, s);
  return attention_backward(p, g, batch, grad_sum_ND, s);
}

// --- norms

at::Tensor GatedBlock::into_half_backward(LayerParams p, LayerGrads g, int norm, const NormBackward& around,
                                          at::Tensor* normed_ND) const {
  if (norm < 0) {
    if (normed_ND != nullptr) *normed_ND = around.x_ND;
    return around.grad_ND + around.residual_ND;
  }
  std::optional<NormAgain> again;
  if (normed_ND != nullptr) again.emplace(NormAgain{{}, *normed_ND});
  return ops_.rms_norm_backward({around.grad_ND, around.residual_ND, around.x_ND, around.saved, at_place(p, norm)},
                                {at_place(g, norm), nullptr, nullptr}, again ? &*again : nullptr);
}

at::Tensor GatedBlock::post_norm(LayerParams p, int norm, const at::Tensor& x_ND, NormResult* keep) const {
  auto result = ops_.add_rms_norm(x_ND, {}, {}, at_place(p, norm), rms_norm_of(config_));
  auto out_ND = std::move(result.out_ND);
  if (keep != nullptr) *keep = std::move(result);
  return out_ND;
}

at::Tensor GatedBlock::post_norm_backward(LayerParams p, LayerGrads g, int norm, const at::Tensor& grad_ND,
                                          const NormResult& saved) const {
  return ops_.rms_norm_backward({grad_ND, {}, saved.sum_ND, saved, at_place(p, norm)},
                                {at_place(g, norm), nullptr, nullptr});
}

// --- shapes

AttentionShape GatedBlock::attention_shape(const MicroBatch& batch) const {
  const auto& traits = config_.traits;
  AttentionShape shape{batch.rows, batch.length, config_.num_heads, config_.head_width(), config_.kv_heads()};
  if (traits.query_scalar > 0) shape.scale = 1.0 / std::sqrt(traits.query_scalar);
  shape.softcap = traits.attention_softcap;
  shape.packing = batch.packing.get();
  if (traits.slides(index_) && traits.window < batch.length) shape.window = traits.window;
  return shape;
}

std::vector<at::Tensor> GatedBlock::qkv_parts(const at::Tensor& qkv_NC) const {
  if (config_.traits.fused_projections) return {qkv_NC};
  const auto queries = config_.num_heads * config_.head_width(), keys = config_.kv_heads() * config_.head_width();
  return {qkv_NC.narrow(1, 0, queries), qkv_NC.narrow(1, queries, keys), qkv_NC.narrow(1, queries + keys, keys)};
}

}  // namespace fsdp::detail

namespace fsdp {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const Ops& ops, const Decoder& decoder, const std::string& module)
      : ops_(ops),
        config_(decoder.config),
        adapter_(ops, decoder, module),
        has_adapter_(!adapter_.parameters().empty()),
        parameters_{detail::parameter_index(decoder, module + ".weight")} {
    parameters_.insert(parameters_.end(), adapter_.parameters().begin(), adapter_.parameters().end());
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    const auto& batch = step.batch;
    auto x_ND = ops_.embed(p[0], {}, batch.ids_N, detail::place_of(batch));
    if (has_adapter_) adapter_.forward(p.subspan(1), batch, batch.ids_N, x_ND);
    if (config_.traits.scaled_embeddings) x_ND.mul_(scale(x_ND));
    return x_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads grads, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    const auto& batch = step.batch;
    if (grads[0] == nullptr && !has_adapter_) return {};
    auto grad = grad_ND;
    if (config_.traits.scaled_embeddings) grad = grad * scale(grad);
    if (config_.traits.padding_id >= 0)
      grad = grad.masked_fill(batch.ids_N.eq(config_.traits.padding_id).unsqueeze(1), 0.0);
    if (has_adapter_) adapter_.backward(p.subspan(1), grads.subspan(1), batch, batch.ids_N, grad);
    if (grads[0] == nullptr) return {};
    Ops::finish(*grads[0]);
    ops_.embed_backward(&grads[0]->grad, nullptr, grad, batch.ids_N, detail::place_of(batch));
    return {};
  }

 private:
  /// Returns sqrt(embed_size), rounded to the embeddings' dtype.
  double scale(const at::Tensor& like) const {
    const auto exact = at::Scalar(std::sqrt(static_cast<double>(config_.embed_size)));
    return at::scalar_tensor(exact, at::TensorOptions(like.scalar_type())).item<double>();
  }

  const Ops& ops_;
  ModelConfig config_;
  detail::EmbeddingAdapter adapter_;
  bool has_adapter_;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

}  // namespace

std::unique_ptr<Layer> detail::make_token_embedding(const Ops& ops, const Decoder& decoder, const std::string& module) {
  return std::make_unique<EmbeddingLayer>(ops, decoder, module);
}

void detail::add_llama_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw UsageError("--dropout: Llama and its kin have none");
  const auto rope = std::make_shared<RopeCache>(ops, config, /*slides=*/false);
  auto local_rope = rope;
  if (config.traits.local_rope_theta > 0) local_rope = std::make_shared<RopeCache>(ops, config, /*slides=*/true);
  const int token = parameter_index(decoder, "model.embed_tokens.weight");
  decoder.layers.push_back(make_token_embedding(ops, decoder, "model.embed_tokens"));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder,
              std::make_unique<GatedBlock>(ops, decoder, block, config.traits.slides(block) ? local_rope : rope));
  }
  const int head = config.tie_word_embeddings ? token : parameter_index(decoder, "lm_head.weight");
  decoder.loss = make_head(ops, decoder, {parameter_index(decoder, "model.norm.weight"), head});
}

}  // namespace fsdp
