// Llama (Touvron et al., arXiv:2302.13971, 2307.09288): RMSNorm before each half of a block, rotary positions,
// grouped-query attention, SwiGLU, no positions in the embedding. Names and layout are those of transformers'
// LlamaForCausalLM. The backward is written out; see BlockLayer::backward.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/config/rope.hpp"
#include "lib/model/cached_attention.hpp"
#include "lib/model/decoder.hpp"
#include "lib/model/rope_cache.hpp"
#include "lib/ops/ops.hpp"

namespace fsdp {
namespace {

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

/// A block's matrix and where its parts stand among the block's parameters.
struct Linear {
  std::size_t weight = 0;
  int bias = -1;  ///< -1: none
};

/// A block's parameters as llama_parameter_table() lists them.
struct BlockPlaces {
  Linear q, k, v, o, gate, up, down;
  std::size_t input_norm = 0, post_norm = 0;

  explicit BlockPlaces(const ModelConfig& config) {
    std::size_t next = 0;
    const auto take = [&](Linear& linear, bool bias) {
      linear.weight = next++;
      if (bias) linear.bias = static_cast<int>(next++);
    };
    for (auto* linear : {&q, &k, &v, &o}) take(*linear, config.attention_bias);
    for (auto* linear : {&gate, &up, &down}) take(*linear, config.mlp_bias);
    input_norm = next++;
    post_norm = next++;
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
  // The outputs of the norms and of SwiGLU are not kept: the backward's passes compute them again on the way.
};

class BlockLayer final : public DecoderBlock {
 public:
  BlockLayer(const Ops& ops, const ModelConfig& config, int index, std::vector<int> parameters,
             std::shared_ptr<RopeCache> rope)
      : ops_(ops),
        config_(config),
        places_(config),
        parameters_(std::move(parameters)),
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
    s.qkv_NC = project_qkv(p, s.norm1.out_ND, shape, {batch.length, batch.first_position});
    s.norm1.out_ND.reset();
    s.heads_NQ = ops_.attention(s.qkv_NC, shape, state != nullptr ? &s.attention : nullptr);
    if (state == nullptr) s.qkv_NC.reset();
    auto projected_ND = ops_.linear(s.heads_NQ, p[places_.o.weight]);
    s.norm2 = ops_.add_rms_norm(x_ND, projected_ND, bias(p, places_.o), p[places_.post_norm], config_.layer_norm_eps);
    projected_ND.reset();
    s.gate_NF = apply(p, places_.gate, s.norm2.out_ND);
    s.up_NF = apply(p, places_.up, s.norm2.out_ND);
    s.norm2.out_ND.reset();
    auto act_NF = ops_.swiglu(s.gate_NF, s.up_NF);
    if (state == nullptr) s.gate_NF.reset(), s.up_NF.reset();
    auto out_ND = ops_.linear(act_NF, p[places_.down.weight]);
    ops_.add_bias(out_ND, s.norm2.sum_ND, bias(p, places_.down));
    if (state != nullptr) *state = std::make_unique<BlockState>(std::move(s));
    return out_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& s = static_cast<BlockState&>(*state);
    const auto shape = attention_shape(batch);
    // Feed-forward: out = swiglu(norm2 W_gate, norm2 W_up) W_down. Gradients of inputs come before those of weights,
    // because their passes compute the weights' other factor again.
    add_bias_grad(g, places_.down, grad_ND);
    auto act_NF = ops_.linear_backward(grad_ND, p[places_.down.weight]);
    ops_.swiglu_backward(act_NF, s.gate_NF, s.up_NF);  // act: the output again; gate, up: their gradients
    ops_.weight_grad(g[places_.down.weight], grad_ND, act_NF);
    act_NF.reset();
    auto grad_norm2_ND = ops_.linear_backward(s.gate_NF, p[places_.gate.weight]);
    ops_.linear_backward_add(grad_norm2_ND, s.up_NF, p[places_.up.weight]);
    // Norm 2 and the residual around the feed-forward
    at::Tensor normed_ND;
    auto grad_sum_ND =
        norm_backward({grad_norm2_ND, grad_ND, s.norm2.sum_ND, s.norm2, p[places_.post_norm]}, g[places_.post_norm],
                      any_wanted(g, {places_.gate, places_.up}) ? &normed_ND : nullptr);
    grad_norm2_ND.reset();
    s.norm2 = {};
    add_linear_grad(g, places_.gate, s.gate_NF, normed_ND);
    s.gate_NF.reset();
    add_linear_grad(g, places_.up, s.up_NF, normed_ND);
    s.up_NF.reset();
    // Attention
    add_linear_grad(g, places_.o, grad_sum_ND, s.heads_NQ);
    const auto grad_heads_NQ = ops_.linear_backward(grad_sum_ND, p[places_.o.weight]);
    auto grad_qkv_NC = ops_.attention_backward(grad_heads_NQ, s.qkv_NC, s.heads_NQ, shape, std::move(s.attention));
    s.qkv_NC.reset();
    s.heads_NQ.reset();
    apply_rotary(grad_qkv_NC, shape, {batch.length, batch.first_position}, /*inverse=*/true);
    const auto parts = qkv_parts(grad_qkv_NC, shape);
    auto grad_norm1_ND = ops_.linear_backward(parts[0], p[places_.q.weight]);
    ops_.linear_backward_add(grad_norm1_ND, parts[1], p[places_.k.weight]);
    ops_.linear_backward_add(grad_norm1_ND, parts[2], p[places_.v.weight]);
    auto grad_x_ND =
        norm_backward({grad_norm1_ND, grad_sum_ND, s.x_ND, s.norm1, p[places_.input_norm]}, g[places_.input_norm],
                      any_wanted(g, {places_.q, places_.k, places_.v}) ? &normed_ND : nullptr);
    add_linear_grad(g, places_.q, parts[0], normed_ND);
    add_linear_grad(g, places_.k, parts[1], normed_ND);
    add_linear_grad(g, places_.v, parts[2], normed_ND);
    return grad_x_ND;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, LayerCache& cache,
                    std::int64_t cache_length) const override {
    const auto n = x_ND.size(0);
    const auto shape = attention_shape({{}, {}, 1, n, {}, 0});
    const auto norm1 = ops_.add_rms_norm(x_ND, {}, {}, p[places_.input_norm], config_.layer_norm_eps);
    const auto qkv_NC = project_qkv(p, norm1.out_ND, shape, {n, cache_length});
    const auto heads_NQ = cached_attention(qkv_NC, shape, cache, cache_length, config_.block_size);
    const auto norm2 = ops_.add_rms_norm(x_ND, ops_.linear(heads_NQ, p[places_.o.weight]), bias(p, places_.o),
                                         p[places_.post_norm], config_.layer_norm_eps);
    const auto act_NF = ops_.swiglu(apply(p, places_.gate, norm2.out_ND), apply(p, places_.up, norm2.out_ND));
    auto out_ND = ops_.linear(act_NF, p[places_.down.weight]);
    ops_.add_bias(out_ND, norm2.sum_ND, bias(p, places_.down));
    return out_ND;
  }

 private:
  static at::Tensor bias(LayerParams p, const Linear& linear) {
    return linear.bias < 0 ? at::Tensor() : p[static_cast<std::size_t>(linear.bias)];
  }

  at::Tensor apply(LayerParams p, const Linear& linear, const at::Tensor& x_ND) const {
    auto out = ops_.linear(x_ND, p[linear.weight]);
    if (linear.bias >= 0) ops_.add_bias(out, {}, bias(p, linear));
    return out;
  }

  void add_bias_grad(LayerGrads g, const Linear& linear, const at::Tensor& grad_NO) const {
    if (linear.bias < 0 || g[static_cast<std::size_t>(linear.bias)] == nullptr) return;
    auto sum = at::zeros({grad_NO.size(1)}, grad_NO.options().dtype(at::kFloat));
    ops_.add_column_sums(grad_NO.contiguous(), sum);
    ops_.accumulate(g[static_cast<std::size_t>(linear.bias)], sum);
  }

  /// Gradients of weight and bias of out = in W^T + b.
  void add_linear_grad(LayerGrads g, const Linear& linear, const at::Tensor& grad_NO, const at::Tensor& in_NI) const {
    ops_.weight_grad(g[linear.weight], grad_NO, in_NI);
    add_bias_grad(g, linear, grad_NO);
  }

  AttentionShape attention_shape(const MicroBatch& batch) const {
    return {batch.rows, batch.length, config_.num_heads, config_.head_width(), config_.kv_heads()};
  }

  /// The columns of q, k and v, as views.
  static std::array<at::Tensor, 3> qkv_parts(const at::Tensor& qkv_NC, const AttentionShape& shape) {
    const auto queries = shape.heads * shape.head_size, keys = shape.key_heads() * shape.head_size;
    return {qkv_NC.narrow(1, 0, queries), qkv_NC.narrow(1, queries, keys), qkv_NC.narrow(1, queries + keys, keys)};
  }

  void apply_rotary(at::Tensor& qkv_NC, const AttentionShape& shape, const RopePlace& place, bool inverse) const {
    const auto& table = rope_->up_to(place.first_position + place.row_length);
    // Keys follow the queries, so their heads are rotated in the same pass.
    ops_.rope(qkv_NC, shape.heads + shape.key_heads(), shape.head_size, table, place, inverse);
  }

  at::Tensor project_qkv(LayerParams p, const at::Tensor& x_ND, const AttentionShape& shape,
                         const RopePlace& place) const {
    auto qkv_NC = at::empty({x_ND.size(0), shape.packed_width()}, x_ND.options());
    auto parts = qkv_parts(qkv_NC, shape);
    ops_.linear_into(parts[0], x_ND, p[places_.q.weight]);
    ops_.linear_into(parts[1], x_ND, p[places_.k.weight]);
    ops_.linear_into(parts[2], x_ND, p[places_.v.weight]);
    if (config_.attention_bias) {
      parts[0].add_(bias(p, places_.q));
      parts[1].add_(bias(p, places_.k));
      parts[2].add_(bias(p, places_.v));
    }
    if (x_ND.size(0) > 0) apply_rotary(qkv_NC, shape, place, /*inverse=*/false);
    return qkv_NC;
  }

  /// Gradient of a norm's input. \param normed_ND  receives its output again; null: nobody needs that
  at::Tensor norm_backward(const NormBackward& norm, GradSlot* grad_gamma, at::Tensor* normed_ND) const {
    auto gamma_grad = at::zeros({config_.embed_size}, norm.grad_ND.options().dtype(at::kFloat));
    std::optional<NormAgain> again;
    if (normed_ND != nullptr) again.emplace(NormAgain{{}, *normed_ND});
    auto result = ops_.rms_norm_backward(norm, {gamma_grad, nullptr, nullptr}, again ? &*again : nullptr);
    ops_.accumulate(grad_gamma, gamma_grad);
    return result;
  }

  static bool any_wanted(LayerGrads g, std::initializer_list<Linear> matrices) {
    return std::any_of(matrices.begin(), matrices.end(), [&](const Linear& m) { return g[m.weight] != nullptr; });
  }

  const Ops& ops_;
  ModelConfig config_;
  BlockPlaces places_;
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
    add_block(decoder, std::make_unique<BlockLayer>(ops, config, block, block_parameters(decoder, block), rope));
  }
  const int head = config.tie_word_embeddings ? token : parameter_index(decoder, "lm_head.weight");
  decoder.loss = make_head(ops, config, {parameter_index(decoder, "model.norm.weight"), head});
}

}  // namespace fsdp
