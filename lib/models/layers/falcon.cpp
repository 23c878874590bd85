// Falcon (Almazrouei et al., arXiv:2311.16867): LayerNorm, GELU, and blocks whose attention and feed-forward read the
// block's input side by side; older ones follow each other and have ALiBi in place of rotary positions.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/linear_group.hpp"
#include "lib/models/layers/rope_cache.hpp"

namespace fsdp {
namespace {

/// Attention of a block: turns rows of query_key_value into rows of heads.
///
/// query_key_value holds, for each head of keys, its queries, the key and the value. ALiBi (Press et al.,
/// arXiv:2108.12409) adds slope x position of the key to the scores before they are scaled. The bias becomes an element
/// of its own of each key, which meets a 1 in the queries, so that every kernel for attention computes with it. Slopes
/// and products are rounded to bf16 as in transformers; any activations' dtype holds them exactly.
class FalconHeads {
 public:
  struct State {
    at::Tensor qkv_NC;  ///< as attention reads it
    at::Tensor out_ND;  ///< as attention returns it
    std::unique_ptr<AttentionState> attention;
  };

  /// \param slopes_H  bf16; undefined without ALiBi. \param rope  null with ALiBi
  FalconHeads(const Ops& ops, const ModelConfig& config, at::Tensor slopes_H, std::shared_ptr<RopeCache> rope)
      : ops_(ops), config_(config), slopes_H_(std::move(slopes_H)), rope_(std::move(rope)) {}

  /// \param keep  null without a backward
  at::Tensor forward(const at::Tensor& projected_NC, const MicroBatch& batch, State* keep) const {
    auto qkv_NC = placed(projected_NC, batch);
    const auto shape = shape_of(batch);
    auto out_ND = ops_.attention(qkv_NC, shape, keep ? &keep->attention : nullptr);
    if (keep != nullptr) {
      keep->qkv_NC = std::move(qkv_NC);
      keep->out_ND = out_ND;
    }
    return without_bias(out_ND);
  }

  /// The output of forward().
  at::Tensor again(const State& state) const { return without_bias(state.out_ND); }

  /// \return the gradient of projected_NC
  at::Tensor backward(const at::Tensor& grad_ND, const MicroBatch& batch, State& s) const {
    const auto shape = shape_of(batch);
    at::Tensor grad_NC;
    if (slopes_H_.defined()) {
      auto wide_ND = at::zeros_like(s.out_ND);
      heads_in(wide_ND, config_.num_heads).narrow(2, 0, width()).copy_(heads_in(grad_ND, config_.num_heads));
      grad_NC = ops_.attention_backward(wide_ND, s.qkv_NC, s.out_ND, shape, std::move(s.attention));
    } else {
      grad_NC = ops_.rotary_attention_backward(grad_ND, s.qkv_NC, s.out_ND, shape, std::move(s.attention),
                                               rope_->rotation(batch));
    }
    s = {};
    return by_groups(slopes_H_.defined() ? narrowed(grad_NC) : grad_NC);
  }

  at::Tensor decode(const at::Tensor& projected_NC, std::span<const DecodePart> parts) const {
    const auto of_part = [](const DecodePart& part) {
      return MicroBatch{{}, {}, 1, part.tokens, {}, part.cache_length};
    };
    const auto place = [&](const at::Tensor& rows_NC, const DecodePart& part) {
      return placed(rows_NC, of_part(part));
    };
    return attend_by_parts(projected_NC, parts, place, [&](const at::Tensor& rows_NC, const DecodePart& part) {
      return without_bias(
          cached_attention(rows_NC, shape_of(of_part(part)), *part.cache, part.cache_length, longest_row(config_)));
    });
  }

 private:
  std::int64_t width() const { return config_.head_width(); }
  std::int64_t group() const { return config_.num_heads / config_.kv_heads(); }
  /// With the bias and zeros, up to a multiple of 8, which kernels on GPUs want.
  std::int64_t wide() const { return (width() + 8) / 8 * 8; }

  static at::Tensor heads_in(const at::Tensor& x_ND, std::int64_t heads) { return x_ND.unflatten(1, {heads, -1}); }

  AttentionShape shape_of(const MicroBatch& batch) const {
    AttentionShape shape{batch.rows, batch.length, config_.num_heads, width(), config_.kv_heads()};
    shape.packing = batch.packing.get();
    if (!slopes_H_.defined()) return shape;
    shape.head_size = wide();
    shape.kv_heads = config_.num_heads;  // each head has its own bias
    shape.scale = 1.0 / std::sqrt(static_cast<double>(width()));
    return shape;
  }

  /// \return rows of [q | k | v] with positions
  at::Tensor placed(const at::Tensor& projected_NC, const MicroBatch& batch) const {
    auto qkv_NC = by_kind(projected_NC);
    if (slopes_H_.defined()) return widened(qkv_NC, batch);
    if (qkv_NC.size(0) == 0) return qkv_NC;
    const auto turned = rope_->rotation(batch);
    ops_.rope(qkv_NC, config_.num_heads + config_.kv_heads(), width(), turned.table, turned.place, false);
    return qkv_NC;
  }

  /// Calls body(part of rows of [q | k | v], the same part of rows of query_key_value).
  template <typename Body>
  void for_parts(const at::Tensor& kinds_NC, const at::Tensor& groups_NC, const Body& body) const {
    const auto keys = config_.kv_heads(), d = width(), queries = config_.num_heads * d;
    const auto groups = groups_NC.unflatten(1, {keys, group() + 2, d});
    body(kinds_NC.narrow(1, 0, queries).unflatten(1, {keys, group(), d}), groups.narrow(2, 0, group()));
    for (const std::int64_t part : {0, 1})
      body(kinds_NC.narrow(1, queries + part * keys * d, keys * d).unflatten(1, {keys, d}),
           groups.select(2, group() + part));
  }

  at::Tensor by_kind(const at::Tensor& groups_NC) const {
    if (config_.kv_heads() == 1) return groups_NC;  // one group is in this order
    auto kinds_NC = at::empty_like(groups_NC);
    for_parts(kinds_NC, groups_NC, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
    return kinds_NC;
  }

  at::Tensor by_groups(const at::Tensor& kinds_NC) const {
    if (config_.kv_heads() == 1) return kinds_NC;
    auto groups_NC = at::empty_like(kinds_NC);
    for_parts(kinds_NC, groups_NC, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    return groups_NC;
  }

  /// q, k or v of rows of [q | k | v], [N, its heads, width]
  at::Tensor part_of_kinds(const at::Tensor& kinds_NC, int part) const {
    const auto queries = config_.num_heads, keys = config_.kv_heads(), d = width();
    const auto first = part == 0 ? 0 : queries + (part - 1) * keys;
    return heads_in(kinds_NC.narrow(1, first * d, (part == 0 ? queries : keys) * d), part == 0 ? queries : keys);
  }

  /// \return rows [q | k | v] of wide heads, as many of keys as of queries
  at::Tensor widened(const at::Tensor& kinds_NC, const MicroBatch& batch) const {
    const auto n = kinds_NC.size(0), heads = config_.num_heads;
    auto wide_N3HW = at::zeros({n, 3, heads, wide()}, kinds_NC.options());
    for (int part = 0; part < 3; ++part) {
      const auto from = part_of_kinds(kinds_NC, part);
      wide_N3HW.select(1, part)
          .narrow(2, 0, width())
          .copy_(part == 0 || group() == 1 ? from : from.repeat_interleave(group(), 1));
    }
    wide_N3HW.select(1, 0).select(2, width()).fill_(1);
    wide_N3HW.select(1, 1).select(2, width()).copy_(positions_of(batch).to(at::kBFloat16).unsqueeze(1) * slopes_H_);
    return wide_N3HW.view({n, 3 * heads * wide()});
  }

  at::Tensor positions_of(const MicroBatch& batch) const {
    if (batch.packing != nullptr) return batch.packing->positions_N;
    const auto first = batch.first_position;
    return at::arange(first, first + batch.length, slopes_H_.options().dtype(at::kInt)).repeat({batch.rows});
  }

  /// \return the gradient of kinds_NC from that of widened()
  at::Tensor narrowed(const at::Tensor& wide_NC) const {
    const auto n = wide_NC.size(0), heads = config_.num_heads, keys = config_.kv_heads();
    const auto wide_N3HW = wide_NC.view({n, 3, heads, wide()});
    auto kinds_NC = at::empty({n, (heads + 2 * keys) * width()}, wide_NC.options());
    for (int part = 0; part < 3; ++part) {
      const auto from = wide_N3HW.select(1, part).narrow(2, 0, width());
      part_of_kinds(kinds_NC, part).copy_(part == 0 || group() == 1 ? from : from.unflatten(1, {keys, group()}).sum(2));
    }
    return kinds_NC;
  }

  at::Tensor without_bias(const at::Tensor& out_ND) const {
    if (!slopes_H_.defined()) return out_ND;
    return heads_in(out_ND, config_.num_heads).narrow(2, 0, width()).flatten(1);
  }

  const Ops& ops_;
  ModelConfig config_;
  at::Tensor slopes_H_;
  std::shared_ptr<RopeCache> rope_;
};

/// LayerNorm, by the indices of its parameters.
struct NormPlace {
  int weight = -1, bias = -1;
  bool is_there() const { return weight >= 0; }
};

struct FalconState final : LayerState {
  at::Tensor x_ND;  ///< the block's input
  NormResult norm1;
  NormResult norm2;  ///< before the feed-forward; sum_ND: its input
  FalconHeads::State heads;
  at::Tensor pre_NF;  ///< before GELU
  detail::LinearState qkv_state, dense_state, up_state, down_state;
  // The outputs of the norms and of GELU are not kept: the backward passes recompute them.
};

class FalconBlock final : public DecoderBlock {
 public:
  FalconBlock(const Ops& ops, const Decoder& decoder, int index, FalconHeads heads)
      : FalconBlock(ops, decoder, index, std::move(heads),
                    detail::ParameterFinder(decoder, index, "transformer.h." + std::to_string(index) + ".")) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override {
    const auto& batch = step.batch;
    FalconState s;
    auto* keep = state != nullptr ? &s : nullptr;
    auto out_ND = run(p, batch, x_ND, keep, [&](const at::Tensor& projected_NC) {
      return heads_.forward(projected_NC, batch, keep ? &keep->heads : nullptr);
    });
    if (keep != nullptr) *state = std::make_unique<FalconState>(std::move(s));
    return out_ND;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, std::span<const DecodePart> parts) const override {
    const MicroBatch batch{{}, {}, 1, x_ND.size(0), {}, 0};
    return run(p, batch, x_ND, nullptr,
               [&](const at::Tensor& projected_NC) { return heads_.decode(projected_NC, parts); });
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    const auto& batch = step.batch;
    auto& s = static_cast<FalconState&>(*state);
    const std::array grad_pre_NF{into_feed_forward_backward(p, g, batch, grad_ND, s)};
    auto grad_in_ND = up_.backward_input(p, g, batch, grad_pre_NF, s.up_state);
    at::Tensor in_ND;
    if (!norm2_.is_there()) {  // both halves share the norm
      auto grad_x_ND = attention_backward(p, g, batch, grad_ND, grad_ND, grad_in_ND, s, &in_ND);
      up_.backward_weights(p, g, batch, grad_pre_NF, in_ND, s.up_state);
      return grad_x_ND;
    }
    const auto grad_sum_ND =
        norm_backward(p, g, norm2_, {grad_in_ND, grad_ND, is_parallel() ? s.x_ND : s.norm2.sum_ND, s.norm2, {}},
                      up_.needs_input(g) ? &in_ND : nullptr);
    grad_in_ND.reset();
    s.norm2 = {};
    up_.backward_weights(p, g, batch, grad_pre_NF, in_ND, s.up_state);
    return attention_backward(p, g, batch, is_parallel() ? grad_ND : grad_sum_ND, grad_sum_ND, {}, s);
  }

 private:
  FalconBlock(const Ops& ops, const Decoder& decoder, int index, FalconHeads heads,
              const detail::ParameterFinder& finder)
      : ops_(ops),
        config_(decoder.config),
        heads_(std::move(heads)),
        qkv_(group(ops, decoder, index, 0,
                   finder.linear("self_attention.query_key_value", (queries() + 2 * keys()), config_.embed_size))),
        dense_(group(ops, decoder, index, 1, finder.linear("self_attention.dense", config_.embed_size, queries()))),
        up_(group(ops, decoder, index, 2,
                  finder.linear("mlp.dense_h_to_4h", config_.ffn_hidden_size, config_.embed_size))),
        down_(group(ops, decoder, index, 3,
                    finder.linear("mlp.dense_4h_to_h", config_.embed_size, config_.ffn_hidden_size))),
        norm1_(place_of(finder, config_.traits.parallel_norms == 2 ? "ln_attn" : "input_layernorm")),
        norm2_(place_of(finder, config_.traits.parallel_norms == 2 ? "ln_mlp" : "post_attention_layernorm")),
        parameters_(detail::block_parameters(decoder, index)),
        name_("block " + std::to_string(index)) {}

  static detail::LinearGroup group(const Ops& ops, const Decoder& decoder, int block, std::uint64_t which,
                                   const detail::Linear& matrix) {
    return {ops, decoder.options, {matrix}, static_cast<std::uint64_t>(block + 1) * 4 + which};
  }

  static NormPlace place_of(const detail::ParameterFinder& finder, const std::string& name) {
    return {finder.find(name + ".weight"), finder.find(name + ".bias")};
  }

  std::int64_t queries() const { return config_.num_heads * config_.head_width(); }
  std::int64_t keys() const { return config_.kv_heads() * config_.head_width(); }
  bool is_parallel() const { return config_.traits.parallel_norms > 0; }

  static at::Tensor at_place(LayerParams p, int place) { return p[static_cast<std::size_t>(place)]; }

  static at::Tensor bias_of(const detail::LinearGroup& group, LayerParams p) {
    const auto biases = group.biases(p);
    return biases.empty() ? at::Tensor() : biases.front();
  }

  NormResult norm(LayerParams p, const NormPlace& place, const at::Tensor& x_ND, const at::Tensor& y_ND = {}) const {
    return ops_.add_layer_norm(x_ND, y_ND, {}, at_place(p, place.weight), at_place(p, place.bias),
                               config_.layer_norm_eps);
  }

  /// \param around  without gamma. \param normed_ND  receives the norm's output; null: not needed
  at::Tensor norm_backward(LayerParams p, LayerGrads g, const NormPlace& place, const NormBackward& around,
                           at::Tensor* normed_ND) const {
    const NormBackward inputs{around.grad_ND, around.residual_ND, around.x_ND, around.saved, at_place(p, place.weight)};
    const NormGrads grads{g[static_cast<std::size_t>(place.weight)], g[static_cast<std::size_t>(place.bias)], nullptr};
    if (normed_ND == nullptr) return ops_.layer_norm_backward(inputs, grads);
    const NormAgain again{at_place(p, place.bias), *normed_ND};
    return ops_.layer_norm_backward(inputs, grads, &again);
  }

  /// The block, with attention(rows of query_key_value) for its heads. \param keep  null without a backward
  template <typename Attention>
  at::Tensor run(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, FalconState* keep,
                 const Attention& attention) const {
    auto norm1 = norm(p, norm1_, x_ND);
    auto attended_ND = dense_.project(
        p, batch, attention(qkv_.project(p, batch, norm1.out_ND, keep ? &keep->qkv_state : nullptr, bias_of(qkv_, p))),
        keep ? &keep->dense_state : nullptr, bias_of(dense_, p));
    NormResult norm2;
    if (norm2_.is_there()) {
      norm1.out_ND.reset();
      norm2 = is_parallel() ? norm(p, norm2_, x_ND) : norm(p, norm2_, x_ND, attended_ND);
      if (!is_parallel()) attended_ND.reset();
    }
    auto& in_ND = norm2_.is_there() ? norm2.out_ND : norm1.out_ND;
    auto pre_NF = up_.project(p, batch, in_ND, keep ? &keep->up_state : nullptr, bias_of(up_, p));
    in_ND.reset();
    auto act_NF = ops_.exact_gelu(pre_NF);
    auto out_ND = down_.project(p, batch, act_NF, keep ? &keep->down_state : nullptr, bias_of(down_, p));
    if (is_parallel()) ops_.add_bias(out_ND, attended_ND, {});
    ops_.add_bias(out_ND, is_parallel() ? x_ND : norm2.sum_ND, {});
    if (keep == nullptr) return out_ND;
    keep->x_ND = x_ND;
    keep->norm1 = std::move(norm1);
    keep->norm2 = std::move(norm2);
    keep->pre_NF = std::move(pre_NF);
    return out_ND;
  }

  // Gradients of inputs are computed before those of weights, because their passes recompute activations that the
  // weight gradients need.

  /// \return the gradient of the feed-forward before GELU
  at::Tensor into_feed_forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                        FalconState& s) const {
    const std::array grads_ND{grad_ND};
    const auto grad_act_NF = down_.backward_input(p, g, batch, grads_ND, s.down_state);
    down_.backward_weights(p, g, batch, grads_ND, down_.needs_input(g) ? ops_.exact_gelu(s.pre_NF) : at::Tensor(),
                           s.down_state);
    auto grad_pre_NF = ops_.exact_gelu_backward(grad_act_NF, s.pre_NF);
    s.pre_NF.reset();
    return grad_pre_NF;
  }

  /// \param grad_ND      gradient of the attention's output
  /// \param residual_ND  gradient of the block's input by other ways
  /// \param more_ND      gradient of the norm's output by the feed-forward; may be undefined
  /// \param normed_ND    receives the norm's output; may be null
  /// \return the gradient of the block's input
  at::Tensor attention_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                const at::Tensor& residual_ND, const at::Tensor& more_ND, FalconState& s,
                                at::Tensor* normed_ND = nullptr) const {
    at::Tensor grad_heads_ND;
    {
      const std::array grads_ND{grad_ND};
      grad_heads_ND = dense_.backward_input(p, g, batch, grads_ND, s.dense_state);
      dense_.backward_weights(p, g, batch, grads_ND, heads_.again(s.heads), s.dense_state);
    }
    const std::array grad_qkv_NC{heads_.backward(grad_heads_ND, batch, s.heads)};
    grad_heads_ND.reset();
    auto grad_in_ND = qkv_.backward_input(p, g, batch, grad_qkv_NC, s.qkv_state);
    if (more_ND.defined()) grad_in_ND.add_(more_ND);
    at::Tensor in_ND;
    const bool needs_input = qkv_.needs_input(g) || normed_ND != nullptr;
    auto grad_x_ND =
        norm_backward(p, g, norm1_, {grad_in_ND, residual_ND, s.x_ND, s.norm1, {}}, needs_input ? &in_ND : nullptr);
    qkv_.backward_weights(p, g, batch, grad_qkv_NC, in_ND, s.qkv_state);
    if (normed_ND != nullptr) *normed_ND = std::move(in_ND);
    return grad_x_ND;
  }

  const Ops& ops_;
  ModelConfig config_;
  FalconHeads heads_;
  detail::LinearGroup qkv_, dense_, up_, down_;
  NormPlace norm1_;  ///< before attention
  NormPlace norm2_;  ///< before the feed-forward; none: norm1_
  std::vector<int> parameters_;
  std::string name_;
};

/// Slopes of ALiBi, bf16 [heads] on the device: powers of 2^(-8/n), n the largest power of two up to the heads, then
/// odd powers of its root.
at::Tensor alibi_slopes(const Ops& ops, std::int64_t heads) {
  const MemoryScope scope(MemoryCategory::workspace);
  const auto n = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const auto options = at::TensorOptions(at::kDouble).device(ops.device());
  const auto powers = at::cat({at::arange(1, n + 1, options) * 2, at::arange(0, heads - n, options) * 2 + 1});
  return (powers * (-4.0 / static_cast<double>(n))).exp2().to(at::kBFloat16);
}

}  // namespace

void detail::add_falcon_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw UsageError("--dropout: Falcon has none here");
  at::Tensor slopes_H;
  std::shared_ptr<RopeCache> rope;
  if (config.traits.alibi) {
    slopes_H = alibi_slopes(ops, config.num_heads);
  } else {
    rope = std::make_shared<RopeCache>(ops, config, /*slides=*/false);
  }
  const int token = parameter_index(decoder, "transformer.word_embeddings.weight");
  decoder.layers.push_back(make_token_embedding(ops, decoder, "transformer.word_embeddings"));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder, std::make_unique<FalconBlock>(ops, decoder, block, FalconHeads(ops, config, slopes_H, rope)));
  }
  const int head = config.tie_word_embeddings ? token : parameter_index(decoder, "lm_head.weight");
  decoder.loss = make_head(
      ops, decoder,
      {parameter_index(decoder, "transformer.ln_f.weight"), parameter_index(decoder, "transformer.ln_f.bias"), head});
}

}  // namespace fsdp
