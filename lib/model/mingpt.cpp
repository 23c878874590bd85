// minGPT (Karpathy): token and position embeddings, pre-norm blocks with tanh-GELU, head tied to the token embedding.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "lib/base/splitmix64.hpp"
#include "lib/model/cached_attention.hpp"
#include "lib/model/decoder.hpp"
#include "lib/ops/ops.hpp"

namespace fsdp {
namespace {

/// Drops elements of x_ND (or of its gradient) at one place of the model.
void drop(const Ops& ops, at::Tensor& x_ND, const MicroBatch& batch, std::uint64_t place, double probability) {
  ops.dropout(x_ND, ops.dropout_keys({batch.sample_keys, place * kDropoutPlaceSpread}, batch.length, kSplitmix64Step),
              probability);
}

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const Ops& ops, const ModelConfig& config, std::vector<int> parameters)
      : ops_(ops), config_(config), parameters_(std::move(parameters)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    auto x_ND = ops_.embed(p[0], p[1], batch.ids_N, detail::place_of(batch));
    if (config_.dropout > 0 && batch.sample_keys.defined()) drop(ops_, x_ND, batch, 1, config_.dropout);
    return x_ND;
  }

  at::Tensor backward(LayerParams, LayerGrads grads, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    auto grad = grad_ND;
    if (config_.dropout > 0 && batch.sample_keys.defined()) drop(ops_, grad, batch, 1, config_.dropout);
    for (auto* slot : grads) {
      if (slot != nullptr) Ops::finish(*slot);
    }
    const auto sum = [&](std::size_t i) { return grads[i] == nullptr ? nullptr : &grads[i]->grad; };
    ops_.embed_backward(sum(0), sum(1), grad, batch.ids_N, detail::place_of(batch));
    return {};
  }

 private:
  const Ops& ops_;
  ModelConfig config_;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

/// Order of a block's parameters, as parameter_table() lists them.
enum BlockParam { ln1_w, ln1_b, attn_w, attn_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, out_w, out_b };

struct BlockState final : LayerState {
  at::Tensor x_ND;  ///< the block's input
  NormResult norm1;
  at::Tensor qkv_N3D;
  std::unique_ptr<AttentionState> attention;
  at::Tensor heads_ND;  ///< attention output before its projection
  NormResult norm2;     ///< sum_ND: input plus attention
  at::Tensor pre_NF;    ///< before GELU
  // The outputs of the norms and of GELU are not kept: the backward's passes compute them again on the way.
};

class BlockLayer final : public DecoderBlock {
 public:
  BlockLayer(const Ops& ops, const ModelConfig& config, int index, std::vector<int> parameters)
      : ops_(ops),
        config_(config),
        index_(index),
        parameters_(std::move(parameters)),
        name_("block " + std::to_string(index)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override {
    BlockState s;
    s.x_ND = x_ND;
    s.norm1 = ops_.add_layer_norm(x_ND, {}, {}, p[ln1_w], p[ln1_b], config_.layer_norm_eps);
    s.qkv_N3D = ops_.linear(s.norm1.out_ND, p[attn_w]);
    ops_.add_bias(s.qkv_N3D, {}, p[attn_b]);
    s.norm1.out_ND.reset();
    s.heads_ND = ops_.attention(s.qkv_N3D, attention_shape(batch), state != nullptr ? &s.attention : nullptr);
    if (state == nullptr) s.qkv_N3D.reset();
    auto projected_ND = ops_.linear(s.heads_ND, p[proj_w]);
    auto bias = p[proj_b];
    if (dropping(batch)) {
      ops_.add_bias(projected_ND, {}, bias);
      drop(ops_, projected_ND, batch, place(1), config_.dropout);
      bias = at::Tensor();
    }
    s.norm2 = ops_.add_layer_norm(x_ND, projected_ND, bias, p[ln2_w], p[ln2_b], config_.layer_norm_eps);
    projected_ND.reset();
    s.pre_NF = ops_.linear(s.norm2.out_ND, p[fc_w]);
    s.norm2.out_ND.reset();
    auto act_NF = ops_.bias_gelu(s.pre_NF, p[fc_b]);
    if (state == nullptr) s.pre_NF.reset();
    auto out_ND = ops_.linear(act_NF, p[out_w]);
    act_NF.reset();
    if (dropping(batch)) {
      ops_.add_bias(out_ND, {}, p[out_b]);
      drop(ops_, out_ND, batch, place(2), config_.dropout);
      ops_.add_bias(out_ND, s.norm2.sum_ND, {});
    } else {
      ops_.add_bias(out_ND, s.norm2.sum_ND, p[out_b]);
    }
    if (state != nullptr) *state = std::make_unique<BlockState>(std::move(s));
    return out_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& s = static_cast<BlockState&>(*state);
    // Feed-forward: out = act(norm2 W_fc + b) W_out + b. Gradients of inputs come before those of weights, because
    // their passes compute the weights' other factor again.
    auto grad_mlp_ND = undo_dropout(grad_ND, batch, 2);
    ops_.bias_grad(g[out_b], grad_mlp_ND);
    auto grad_pre_NF = ops_.linear_backward(grad_mlp_ND, p[out_w]);
    at::Tensor act_NF;
    ops_.bias_gelu_backward(grad_pre_NF, s.pre_NF, g[fc_b], &act_NF);
    s.pre_NF.reset();
    ops_.weight_grad(g[out_w], grad_mlp_ND, act_NF);
    act_NF.reset();
    grad_mlp_ND.reset();
    auto grad_norm2_ND = ops_.linear_backward(grad_pre_NF, p[fc_w]);
    // Norm 2 and the residual around the feed-forward
    const bool fused_bias = !dropping(batch);
    at::Tensor normed_ND;
    auto grad_sum_ND = norm_backward({grad_norm2_ND, grad_ND, s.norm2.sum_ND, s.norm2, p[ln2_w]}, p[ln2_b],
                                     {g[ln2_w], g[ln2_b], fused_bias ? g[proj_b] : nullptr}, normed_ND);
    grad_norm2_ND.reset();
    s.norm2 = {};
    ops_.weight_grad(g[fc_w], grad_pre_NF, normed_ND);
    grad_pre_NF.reset();
    // Attention
    auto grad_proj_ND = undo_dropout(grad_sum_ND, batch, 1);
    if (!fused_bias) ops_.bias_grad(g[proj_b], grad_proj_ND);
    ops_.weight_grad(g[proj_w], grad_proj_ND, s.heads_ND);
    const auto grad_heads_ND = ops_.linear_backward(grad_proj_ND, p[proj_w]);
    grad_proj_ND.reset();
    auto grad_qkv_N3D =
        ops_.attention_backward(grad_heads_ND, s.qkv_N3D, s.heads_ND, attention_shape(batch), std::move(s.attention));
    s.qkv_N3D.reset();
    s.heads_ND.reset();
    ops_.bias_grad(g[attn_b], grad_qkv_N3D);
    const auto grad_norm1_ND = ops_.linear_backward(grad_qkv_N3D, p[attn_w]);
    auto grad_x_ND = norm_backward({grad_norm1_ND, grad_sum_ND, s.x_ND, s.norm1, p[ln1_w]}, p[ln1_b],
                                   {g[ln1_w], g[ln1_b], nullptr}, normed_ND);
    ops_.weight_grad(g[attn_w], grad_qkv_N3D, normed_ND);
    return grad_x_ND;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, LayerCache& cache,
                    std::int64_t cache_length) const override {
    const auto n = x_ND.size(0);
    const auto heads = config_.num_heads;
    const auto head_size = config_.embed_size / heads;
    const auto norm1 = ops_.add_layer_norm(x_ND, {}, {}, p[ln1_w], p[ln1_b], config_.layer_norm_eps);
    auto qkv = ops_.linear(norm1.out_ND, p[attn_w]);
    ops_.add_bias(qkv, {}, p[attn_b]);
    const auto mixed = cached_attention(qkv, {1, n, heads, head_size}, cache, cache_length, config_.block_size);
    const auto norm2 =
        ops_.add_layer_norm(x_ND, ops_.linear(mixed, p[proj_w]), p[proj_b], p[ln2_w], p[ln2_b], config_.layer_norm_eps);
    auto pre = ops_.linear(norm2.out_ND, p[fc_w]);
    auto out_ND = ops_.linear(ops_.bias_gelu(pre, p[fc_b]), p[out_w]);
    ops_.add_bias(out_ND, norm2.sum_ND, p[out_b]);
    return out_ND;
  }

 private:
  bool dropping(const MicroBatch& batch) const { return config_.dropout > 0 && batch.sample_keys.defined(); }
  std::uint64_t place(std::uint64_t which) const { return static_cast<std::uint64_t>(index_ + 1) * 4 + which; }

  at::Tensor undo_dropout(const at::Tensor& grad_ND, const MicroBatch& batch, std::uint64_t which) const {
    if (!dropping(batch)) return grad_ND;
    auto grad = grad_ND.clone();
    drop(ops_, grad, batch, place(which), config_.dropout);
    return grad;
  }

  /// Gradient of a norm's input; normed_ND receives its output again.
  at::Tensor norm_backward(const NormBackward& norm, const at::Tensor& beta_D, const NormGrads& grads,
                           at::Tensor& normed_ND) const {
    const NormAgain again{beta_D, normed_ND};
    return ops_.layer_norm_backward(norm, grads, &again);
  }

  AttentionShape attention_shape(const MicroBatch& batch) const {
    AttentionShape shape{batch.rows, batch.length, config_.num_heads, config_.embed_size / config_.num_heads};
    shape.packing = batch.packing.get();
    if (dropping(batch)) {
      shape.dropout = config_.dropout;
      shape.dropout_place = {batch.sample_keys, place(3) * kDropoutPlaceSpread};
    }
    return shape;
  }

  const Ops& ops_;
  ModelConfig config_;
  int index_;
  std::vector<int> parameters_;
  std::string name_;
};

}  // namespace

void detail::add_mingpt_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  const int token = parameter_index(decoder, "transformer.wte.weight");
  decoder.layers.push_back(std::make_unique<EmbeddingLayer>(
      ops, config, std::vector<int>{token, parameter_index(decoder, "transformer.wpe.weight")}));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder, std::make_unique<BlockLayer>(ops, config, block, block_parameters(decoder, block)));
  }
  decoder.loss = make_head(
      ops, config,
      {parameter_index(decoder, "transformer.ln_f.weight"), parameter_index(decoder, "transformer.ln_f.bias"), token});
}

}  // namespace fsdp
