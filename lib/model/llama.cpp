// Llama (Touvron et al., arXiv:2302.13971, 2307.09288): RMSNorm before each half of a block, rotary positions,
// grouped-query attention, SwiGLU, no positions in the embedding. Names and layout are those of transformers'
// LlamaForCausalLM. The backward is written out; see BlockLayer::backward.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/config/rope.hpp"
#include "lib/model/cached_attention.hpp"
#include "lib/model/decoder.hpp"
#include "lib/model/linear_group.hpp"
#include "lib/model/rope_cache.hpp"
#include "lib/ops/ops.hpp"

namespace fsdp {
namespace {

using detail::Linear;
using detail::LinearGroup;
using detail::LoraState;

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const Ops& ops, int parameter) : ops_(ops), parameters_{parameter} {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    return ops_.embed(p[0], {}, batch.ids_N, {batch.length, batch.first_position});
  }

  at::Tensor backward(LayerParams, LayerGrads grads, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    if (grads[0] == nullptr) return {};
    Ops::finish(*grads[0]);
    ops_.embed_backward(&grads[0]->grad, nullptr, grad_ND, batch.ids_N, batch.length);
    return {};
  }

 private:
  const Ops& ops_;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

/// A block's parameters as quantized_table() and adapter_table() list them.
struct BlockPlaces {
  Linear q, k, v, o, gate, up, down;
  std::size_t input_norm = 0, post_norm = 0;

  BlockPlaces(const ModelConfig& config, const DecoderOptions& options) {
    const auto& lora = options.lora;
    const std::array matrices{&q, &k, &v, &o, &gate, &up, &down};
    std::size_t next = 0;
    const auto take = [&](Linear& linear, bool bias) {
      linear.weight = next++;
      if (bias) linear.bias = static_cast<int>(next++);
    };
    for (auto* linear : {&q, &k, &v, &o}) take(*linear, config.attention_bias);
    for (auto* linear : {&gate, &up, &down}) take(*linear, config.mlp_bias);
    input_norm = next++;
    post_norm = next++;
    set_sizes(config);
    if (options.quantize.enabled()) {
      for (auto* matrix : matrices) {
        matrix->absmax = static_cast<int>(next++);
        if (!options.quantize.double_quant) continue;
        matrix->nested_absmax = static_cast<int>(next++);
        matrix->nested_offset = static_cast<int>(next++);
      }
    }
    if (!lora.enabled()) return;
    const auto modules = lora_modules(config), targets = lora_targets(config, lora);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (std::find(targets.begin(), targets.end(), modules[i]) == targets.end()) continue;
      matrices[i]->lora_a = static_cast<int>(next++);
      matrices[i]->lora_b = static_cast<int>(next++);
      if (lora.dora) matrices[i]->magnitude = static_cast<int>(next++);
    }
  }

 private:
  void set_sizes(const ModelConfig& config) {
    const auto width = config.embed_size, queries = config.num_heads * config.head_width();
    const auto keys = config.kv_heads() * config.head_width();
    const auto set = [](Linear& matrix, std::int64_t rows, std::int64_t columns) {
      matrix.rows = rows;
      matrix.columns = columns;
    };
    set(q, queries, width);
    set(k, keys, width);
    set(v, keys, width);
    set(o, width, queries);
    set(gate, config.ffn_hidden_size, width);
    set(up, config.ffn_hidden_size, width);
    set(down, width, config.ffn_hidden_size);
  }
};

struct BlockState final : LayerState {
  at::Tensor x_ND;  ///< the block's input
  NormResult norm1;
  at::Tensor qkv_NC;  ///< rows of [q | k | v], rotated
  std::unique_ptr<AttentionState> attention;
  at::Tensor heads_NQ;  ///< attention output before its projection
  NormResult norm2;     ///< sum_ND: input plus attention
  at::Tensor gate_NF, up_NF;
  LoraState lora_qkv, lora_o, lora_gate_up, lora_down;
  // The outputs of the norms and of SwiGLU are not kept: the backward's passes compute them again on the way.
};

class BlockLayer final : public DecoderBlock {
 public:
  BlockLayer(const Ops& ops, const Decoder& decoder, int index, std::shared_ptr<RopeCache> rope)
      : ops_(ops),
        config_(decoder.config),
        places_(config_, decoder.options),
        qkv_(ops, decoder.options, {places_.q, places_.k, places_.v}, place(index, 0)),
        o_(ops, decoder.options, {places_.o}, place(index, 1)),
        gate_up_(ops, decoder.options, {places_.gate, places_.up}, place(index, 2)),
        down_(ops, decoder.options, {places_.down}, place(index, 3)),
        parameters_(detail::block_parameters(decoder, index)),
        rope_(std::move(rope)),
        name_("block " + std::to_string(index)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override {
    const auto shape = attention_shape(batch);
    BlockState s;
    s.x_ND = x_ND;
    s.norm1 = ops_.add_rms_norm(x_ND, {}, {}, p[places_.input_norm], config_.layer_norm_eps);
    const bool keep = state != nullptr;
    s.qkv_NC = project_qkv(p, batch, s.norm1.out_ND, shape, keep ? &s.lora_qkv : nullptr);
    s.norm1.out_ND.reset();
    s.heads_NQ = ops_.attention(s.qkv_NC, shape, keep ? &s.attention : nullptr);
    if (!keep) s.qkv_NC.reset();
    auto projected_ND = project(o_, p, batch, s.heads_NQ, keep ? &s.lora_o : nullptr);
    s.norm2 = ops_.add_rms_norm(x_ND, projected_ND, bias(p, places_.o), p[places_.post_norm], config_.layer_norm_eps);
    projected_ND.reset();
    std::tie(s.gate_NF, s.up_NF) = project_gate_up(p, batch, s.norm2.out_ND, keep ? &s.lora_gate_up : nullptr);
    s.norm2.out_ND.reset();
    auto act_NF = ops_.swiglu(s.gate_NF, s.up_NF);
    if (!keep) s.gate_NF.reset(), s.up_NF.reset();
    auto out_ND = project(down_, p, batch, act_NF, keep ? &s.lora_down : nullptr);
    ops_.add_bias(out_ND, s.norm2.sum_ND, bias(p, places_.down));
    if (keep) *state = std::make_unique<BlockState>(std::move(s));
    return out_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& s = static_cast<BlockState&>(*state);
    const auto shape = attention_shape(batch);
    // Feed-forward: out = swiglu(norm2 W_gate, norm2 W_up) W_down. Gradients of inputs come before those of weights,
    // because their passes compute the weights' other factor again.
    const std::array grads_down{grad_ND};
    auto act_NF = down_.backward_input(p, g, batch, grads_down, s.lora_down);
    ops_.swiglu_backward(act_NF, s.gate_NF, s.up_NF);  // act: the output again; gate, up: their gradients
    down_.backward_weights(p, g, batch, grads_down, act_NF, s.lora_down);
    act_NF.reset();
    std::array grads_gate_up{std::move(s.gate_NF), std::move(s.up_NF)};
    auto grad_norm2_ND = gate_up_.backward_input(p, g, batch, grads_gate_up, s.lora_gate_up);
    // Norm 2 and the residual around the feed-forward
    at::Tensor normed_ND;
    auto grad_sum_ND = norm_backward({grad_norm2_ND, grad_ND, s.norm2.sum_ND, s.norm2, p[places_.post_norm]},
                                     g[places_.post_norm], gate_up_.needs_input(g) ? &normed_ND : nullptr);
    grad_norm2_ND.reset();
    s.norm2 = {};
    gate_up_.backward_weights(p, g, batch, grads_gate_up, normed_ND, s.lora_gate_up);
    grads_gate_up = {};
    // Attention
    const std::array grads_o{grad_sum_ND};
    const auto grad_heads_NQ = o_.backward_input(p, g, batch, grads_o, s.lora_o);
    o_.backward_weights(p, g, batch, grads_o, s.heads_NQ, s.lora_o);
    auto grad_qkv_NC = ops_.rotary_attention_backward(grad_heads_NQ, s.qkv_NC, s.heads_NQ, shape,
                                                      std::move(s.attention), rotation(batch));
    s.qkv_NC.reset();
    s.heads_NQ.reset();
    const auto parts = qkv_parts(grad_qkv_NC, shape);
    auto grad_norm1_ND = qkv_.backward_input(p, g, batch, parts, s.lora_qkv);
    auto grad_x_ND = norm_backward({grad_norm1_ND, grad_sum_ND, s.x_ND, s.norm1, p[places_.input_norm]},
                                   g[places_.input_norm], qkv_.needs_input(g) ? &normed_ND : nullptr);
    qkv_.backward_weights(p, g, batch, parts, normed_ND, s.lora_qkv);
    return grad_x_ND;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, LayerCache& cache,
                    std::int64_t cache_length) const override {
    const auto n = x_ND.size(0);
    const MicroBatch batch{{}, {}, 1, n, {}, cache_length};
    const auto shape = attention_shape(batch);
    const auto norm1 = ops_.add_rms_norm(x_ND, {}, {}, p[places_.input_norm], config_.layer_norm_eps);
    const auto qkv_NC = project_qkv(p, batch, norm1.out_ND, shape, nullptr);
    const auto heads_NQ = cached_attention(qkv_NC, shape, cache, cache_length, config_.block_size);
    const auto norm2 = ops_.add_rms_norm(x_ND, project(o_, p, batch, heads_NQ, nullptr), bias(p, places_.o),
                                         p[places_.post_norm], config_.layer_norm_eps);
    const auto [gate_NF, up_NF] = project_gate_up(p, batch, norm2.out_ND, nullptr);
    auto out_ND = project(down_, p, batch, ops_.swiglu(gate_NF, up_NF), nullptr);
    ops_.add_bias(out_ND, norm2.sum_ND, bias(p, places_.down));
    return out_ND;
  }

 private:
  static at::Tensor bias(LayerParams p, const Linear& linear) {
    return linear.bias < 0 ? at::Tensor() : p[static_cast<std::size_t>(linear.bias)];
  }

  /// A number of each group of matrices.
  static std::uint64_t place(int index, std::uint64_t group) {
    return static_cast<std::uint64_t>(index + 1) * 4 + group;
  }

  /// Of a group of one matrix; without its bias.
  at::Tensor project(const LinearGroup& group, LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI,
                     LoraState* keep) const {
    auto outs = group.make_outputs(p, x_NI);
    group.forward(p, batch, x_NI, outs, keep);
    return outs[0];
  }

  std::pair<at::Tensor, at::Tensor> project_gate_up(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                                                    LoraState* keep) const {
    auto outs = gate_up_.make_outputs(p, x_ND);
    gate_up_.forward(p, batch, x_ND, outs, keep);
    if (config_.mlp_bias) {
      ops_.add_bias(outs[0], {}, bias(p, places_.gate));
      ops_.add_bias(outs[1], {}, bias(p, places_.up));
    }
    return {outs[0], outs[1]};
  }

  AttentionShape attention_shape(const MicroBatch& batch) const {
    return {batch.rows, batch.length, config_.num_heads, config_.head_width(), config_.kv_heads()};
  }

  /// The columns of q, k and v, as views.
  static std::array<at::Tensor, 3> qkv_parts(const at::Tensor& qkv_NC, const AttentionShape& shape) {
    const auto queries = shape.heads * shape.head_size, keys = shape.key_heads() * shape.head_size;
    return {qkv_NC.narrow(1, 0, queries), qkv_NC.narrow(1, queries, keys), qkv_NC.narrow(1, queries + keys, keys)};
  }

  Rotation rotation(const MicroBatch& batch) const {
    return {rope_->up_to(batch.first_position + batch.length), {batch.length, batch.first_position}};
  }

  at::Tensor project_qkv(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, const AttentionShape& shape,
                         LoraState* keep) const {
    auto qkv_NC = at::empty({x_ND.size(0), shape.packed_width()}, x_ND.options());
    auto parts = qkv_parts(qkv_NC, shape);
    qkv_.forward(p, batch, x_ND, parts, keep);
    if (config_.attention_bias) {
      parts[0].add_(bias(p, places_.q));
      parts[1].add_(bias(p, places_.k));
      parts[2].add_(bias(p, places_.v));
    }
    if (x_ND.size(0) == 0) return qkv_NC;
    const auto turned = rotation(batch);
    // Keys follow the queries, so their heads are turned in the same pass.
    ops_.rope(qkv_NC, shape.heads + shape.key_heads(), shape.head_size, turned.table, turned.place, false);
    return qkv_NC;
  }

  /// Gradient of a norm's input. \param normed_ND  receives its output again; null: nobody needs that
  at::Tensor norm_backward(const NormBackward& norm, GradSlot* grad_gamma, at::Tensor* normed_ND) const {
    std::optional<NormAgain> again;
    if (normed_ND != nullptr) again.emplace(NormAgain{{}, *normed_ND});
    return ops_.rms_norm_backward(norm, {grad_gamma, nullptr, nullptr}, again ? &*again : nullptr);
  }

  const Ops& ops_;
  ModelConfig config_;
  BlockPlaces places_;
  LinearGroup qkv_, o_, gate_up_, down_;
  std::vector<int> parameters_;
  std::shared_ptr<RopeCache> rope_;
  std::string name_;
};

}  // namespace

void detail::add_llama_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw UsageError("--dropout: Llama has none");
  const auto rope = std::make_shared<RopeCache>(ops, rope_frequencies(config));
  const int token = parameter_index(decoder, "model.embed_tokens.weight");
  decoder.layers.push_back(std::make_unique<EmbeddingLayer>(ops, token));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder, std::make_unique<BlockLayer>(ops, decoder, block, rope));
  }
  const int head = config.tie_word_embeddings ? token : parameter_index(decoder, "lm_head.weight");
  decoder.loss = make_head(ops, config, {parameter_index(decoder, "model.norm.weight"), head});
}

}  // namespace fsdp
