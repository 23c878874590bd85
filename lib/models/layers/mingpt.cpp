// minGPT (Karpathy): token and position embeddings, pre-norm blocks with tanh-GELU, head tied to the token embedding.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/hash_functions.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/linear_group.hpp"
#include "lib/models/layers/token_adapters.hpp"

namespace fsdp {
namespace {

/// Applies dropout to x_ND (or to its gradient); `place` identifies the dropout layer in the model.
void drop(const Ops& ops, at::Tensor& x_ND, const MicroBatch& batch, std::uint64_t place, double probability) {
  ops.dropout(x_ND, ops.dropout_keys({batch.sample_keys, place * kDropoutIndexSpread}, batch.length, kSplitmix64Step),
              probability);
}

class SumEmbeddingLayer final : public Layer {
 public:
  /// \param parameters  token table, position table
  SumEmbeddingLayer(const Ops& ops, const Decoder& decoder, std::vector<int> parameters)
      : ops_(ops),
        config_(decoder.config),
        of_tokens_(ops, decoder, "transformer.wte"),
        of_positions_(ops, decoder, "transformer.wpe"),
        parameters_(std::move(parameters)) {
    for (const auto* adapter : {&of_tokens_, &of_positions_})
      parameters_.insert(parameters_.end(), adapter->parameters().begin(), adapter->parameters().end());
    has_adapter_ = parameters_.size() > kTables;
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    const auto& batch = step.batch;
    auto x_ND = ops_.embed(p[0], has_adapter_ ? at::Tensor() : p[1], batch.ids_N, detail::place_of(batch));
    if (has_adapter_) {
      const auto positions_N = positions_of(batch);
      auto of_positions_ND = ops_.embed(p[1], {}, positions_N, detail::place_of(batch));
      of_tokens_.forward(p.subspan(kTables), batch, batch.ids_N, x_ND);
      of_positions_.forward(p.subspan(first_of_positions()), batch, positions_N, of_positions_ND);
      ops_.add_bias(x_ND, of_positions_ND, {});
    }
    if (config_.dropout > 0 && batch.sample_keys.defined()) drop(ops_, x_ND, batch, 1, config_.dropout);
    return x_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads grads, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    const auto& batch = step.batch;
    auto grad = grad_ND;
    if (config_.dropout > 0 && batch.sample_keys.defined()) drop(ops_, grad, batch, 1, config_.dropout);
    if (has_adapter_) {
      of_tokens_.backward(p.subspan(kTables), grads.subspan(kTables), batch, batch.ids_N, grad);
      const auto first = first_of_positions();
      of_positions_.backward(p.subspan(first), grads.subspan(first), batch, positions_of(batch), grad);
    }
    for (auto* slot : grads.first(kTables)) {
      if (slot != nullptr) Ops::finish(*slot);
    }
    const auto sum = [&](std::size_t i) { return grads[i] == nullptr ? nullptr : &grads[i]->grad; };
    if (sum(0) != nullptr || sum(1) != nullptr)
      ops_.embed_backward(sum(0), sum(1), grad, batch.ids_N, detail::place_of(batch));
    return {};
  }

 private:
  static constexpr std::size_t kTables = 2;

  /// Place of the first parameter of the positions' adapter.
  std::size_t first_of_positions() const { return kTables + of_tokens_.parameters().size(); }

  /// int32 [N]
  static at::Tensor positions_of(const MicroBatch& batch) {
    if (batch.packing != nullptr) return batch.packing->positions_N;
    const auto row = at::arange(batch.first_position, batch.first_position + batch.length, batch.ids_N.options());
    return row.repeat({batch.rows});
  }

  const Ops& ops_;
  ModelConfig config_;
  detail::EmbeddingAdapter of_tokens_, of_positions_;
  bool has_adapter_ = false;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

/// Order of a block's first parameters in parameter_table(); scales and adapters follow.
enum BlockParam { ln1_w, ln1_b, attn_w, attn_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, out_w, out_b };

struct BlockState final : LayerState {
  at::Tensor x_ND;  ///< the block's input
  NormResult norm1;
  at::Tensor qkv_N3D;
  std::unique_ptr<AttentionState> attention;
  at::Tensor heads_ND;  ///< attention output before the projection
  NormResult norm2;     ///< sum_ND: block input plus attention
  at::Tensor pre_NF;    ///< before GELU
  detail::LinearState attn_state, proj_state, fc_state, out_state;
  // The outputs of the norms and of GELU are not kept; the backward pass recomputes them within its own passes.
};

/// A block's matrices. The block adds most biases itself, fused with other elementwise work.
struct BlockMatrices {
  detail::LinearGroup attn, proj, fc, out;

  BlockMatrices(const Ops& ops, const Decoder& decoder, int block)
      : BlockMatrices(ops, decoder, block,
                      detail::ParameterFinder(decoder, block, "transformer.h." + std::to_string(block) + ".")) {}

 private:
  BlockMatrices(const Ops& ops, const Decoder& decoder, int block, const detail::ParameterFinder& finder)
      : attn(group(ops, decoder, block, 0, finder.linear("attn.c_attn", 3 * width(decoder), width(decoder)))),
        proj(group(ops, decoder, block, 1, finder.linear("attn.c_proj", width(decoder), width(decoder)))),
        fc(group(ops, decoder, block, 2, finder.linear("mlp.c_fc", hidden(decoder), width(decoder)))),
        out(group(ops, decoder, block, 3, finder.linear("mlp.c_proj", width(decoder), hidden(decoder)))) {}

  static std::int64_t width(const Decoder& decoder) { return decoder.config.embed_size; }
  static std::int64_t hidden(const Decoder& decoder) { return decoder.config.ffn_hidden_size; }

  static detail::LinearGroup group(const Ops& ops, const Decoder& decoder, int block, std::uint64_t which,
                                   detail::Linear matrix) {
    matrix.bias = -1;
    // These numbers follow those of the model's own dropout layers.
    const auto place = static_cast<std::uint64_t>(decoder.config.num_layers + block + 1) * 4 + which;
    return {ops, decoder.options, {matrix}, place};
  }
};

class BlockLayer final : public DecoderBlock {
 public:
  BlockLayer(const Ops& ops, const Decoder& decoder, int index)
      : ops_(ops),
        config_(decoder.config),
        index_(index),
        matrices_(ops, decoder, index),
        parameters_(detail::block_parameters(decoder, index)),
        name_("block " + std::to_string(index)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override {
    const auto& batch = step.batch;
    BlockState s;
    auto* keep = state != nullptr ? &s : nullptr;
    s.x_ND = x_ND;
    s.norm1 = ops_.add_layer_norm(x_ND, {}, {}, p[ln1_w], p[ln1_b], config_.layer_norm_eps);
    s.qkv_N3D = matrices_.attn.project(p, batch, s.norm1.out_ND, keep ? &keep->attn_state : nullptr, p[attn_b]);
    s.norm1.out_ND.reset();
    s.heads_ND = ops_.attention(s.qkv_N3D, attention_shape(batch), keep ? &keep->attention : nullptr);
    if (keep == nullptr) s.qkv_N3D.reset();
    auto projected_ND = matrices_.proj.project(p, batch, s.heads_ND, keep ? &keep->proj_state : nullptr);
    auto bias = p[proj_b];
    if (dropping(batch)) {
      ops_.add_bias(projected_ND, {}, bias);
      drop(ops_, projected_ND, batch, place(1), config_.dropout);
      bias = at::Tensor();
    }
    s.norm2 = ops_.add_layer_norm(x_ND, projected_ND, bias, p[ln2_w], p[ln2_b], config_.layer_norm_eps);
    projected_ND.reset();
    const auto fc_bias = bias_of_fc(p, x_ND.scalar_type());
    s.pre_NF = matrices_.fc.project(p, batch, s.norm2.out_ND, keep ? &keep->fc_state : nullptr, fc_bias.of_product);
    s.norm2.out_ND.reset();
    auto act_NF = ops_.bias_gelu(s.pre_NF, fc_bias.of_gelu);
    if (keep == nullptr) s.pre_NF.reset();
    auto out_ND = matrices_.out.project(p, batch, act_NF, keep ? &keep->out_state : nullptr);
    act_NF.reset();
    if (dropping(batch)) {
      ops_.add_bias(out_ND, {}, p[out_b]);
      drop(ops_, out_ND, batch, place(2), config_.dropout);
      ops_.add_bias(out_ND, s.norm2.sum_ND, {});
    } else {
      ops_.add_bias(out_ND, s.norm2.sum_ND, p[out_b]);
    }
    if (keep != nullptr) *state = std::make_unique<BlockState>(std::move(s));
    return out_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    const auto& batch = step.batch;
    auto& s = static_cast<BlockState&>(*state);
    const auto grad_sum_ND = feed_forward_backward(p, g, batch, grad_ND, s);
    return attention_backward(p, g, batch, grad_sum_ND, s);
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, std::span<const DecodePart> parts) const override {
    const MicroBatch batch{{}, {}, 1, x_ND.size(0), {}, 0};
    const auto heads = config_.num_heads;
    const auto head_size = config_.embed_size / heads;
    const auto norm1 = ops_.add_layer_norm(x_ND, {}, {}, p[ln1_w], p[ln1_b], config_.layer_norm_eps);
    auto qkv = matrices_.attn.project(p, batch, norm1.out_ND, nullptr, p[attn_b]);
    const auto as_it_is = [](const at::Tensor& rows, const DecodePart&) { return rows; };
    const auto mixed = attend_by_parts(qkv, parts, as_it_is, [&](const at::Tensor& rows, const DecodePart& part) {
      return cached_attention(rows, {1, part.tokens, heads, head_size}, *part.cache, part.cache_length,
                              config_.block_size);
    });
    const auto norm2 = ops_.add_layer_norm(x_ND, matrices_.proj.project(p, batch, mixed, nullptr), p[proj_b], p[ln2_w],
                                           p[ln2_b], config_.layer_norm_eps);
    const auto fc_bias = bias_of_fc(p, x_ND.scalar_type());
    auto pre_NF = matrices_.fc.project(p, batch, norm2.out_ND, nullptr, fc_bias.of_product);
    auto out_ND = matrices_.out.project(p, batch, ops_.bias_gelu(pre_NF, fc_bias.of_gelu), nullptr);
    ops_.add_bias(out_ND, norm2.sum_ND, p[out_b]);
    return out_ND;
  }

 private:
  bool dropping(const MicroBatch& batch) const { return config_.dropout > 0 && batch.sample_keys.defined(); }

  /// The bias before GELU, where it is added: in the product, or in float32 by GELU's pass, which costs nothing there.
  struct BiasOfFc {
    at::Tensor of_product, of_gelu;
  };
  BiasOfFc bias_of_fc(LayerParams p, at::ScalarType activations) const {
    if (matrices_.fc.adds_bias_in_product(p, activations)) return {p[fc_b], {}};
    return {{}, p[fc_b]};
  }

  std::uint64_t place(std::uint64_t which) const { return static_cast<std::uint64_t>(index_ + 1) * 4 + which; }

  at::Tensor undo_dropout(const at::Tensor& grad_ND, const MicroBatch& batch, std::uint64_t which) const {
    if (!dropping(batch)) return grad_ND;
    auto grad = grad_ND.clone();
    drop(ops_, grad, batch, place(which), config_.dropout);
    return grad;
  }

  /// \return the gradient of a norm's input. \param normed_ND  receives the recomputed output of the norm; null: not
  /// needed
  at::Tensor norm_backward(const NormBackward& norm, const at::Tensor& beta_D, const NormGrads& grads,
                           at::Tensor* normed_ND) const {
    if (normed_ND == nullptr) return ops_.layer_norm_backward(norm, grads);
    const NormAgain again{beta_D, *normed_ND};
    return ops_.layer_norm_backward(norm, grads, &again);
  }

  /// Each half of a block maps the gradient of its output to that of its input, including the residual path. Gradients
  /// of inputs are computed before those of weights, because their passes recompute activations that the weight
  /// gradients need.
  at::Tensor feed_forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                   BlockState& s) const {
    std::array<at::Tensor, 1> grad_pre_NF;
    {
      const std::array grad_mlp_ND{undo_dropout(grad_ND, batch, 2)};
      ops_.bias_grad(g[out_b], grad_mlp_ND[0]);
      grad_pre_NF[0] = matrices_.out.backward_input(p, g, batch, grad_mlp_ND, s.out_state);
      at::Tensor act_NF;
      ops_.bias_gelu_backward(grad_pre_NF[0], s.pre_NF, g[fc_b], matrices_.out.needs_input(g) ? &act_NF : nullptr);
      s.pre_NF.reset();
      matrices_.out.backward_weights(p, g, batch, grad_mlp_ND, act_NF, s.out_state);
    }
    auto grad_norm2_ND = matrices_.fc.backward_input(p, g, batch, grad_pre_NF, s.fc_state);
    at::Tensor normed_ND;
    auto grad_sum_ND = norm_backward({grad_norm2_ND, grad_ND, s.norm2.sum_ND, s.norm2, p[ln2_w]}, p[ln2_b],
                                     {g[ln2_w], g[ln2_b], dropping(batch) ? nullptr : g[proj_b]},
                                     matrices_.fc.needs_input(g) ? &normed_ND : nullptr);
    grad_norm2_ND.reset();
    s.norm2 = {};
    matrices_.fc.backward_weights(p, g, batch, grad_pre_NF, normed_ND, s.fc_state);
    return grad_sum_ND;
  }

  at::Tensor attention_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& grad_ND,
                                BlockState& s) const {
    at::Tensor grad_heads_ND;
    {
      const std::array grad_proj_ND{undo_dropout(grad_ND, batch, 1)};
      if (dropping(batch)) ops_.bias_grad(g[proj_b], grad_proj_ND[0]);
      grad_heads_ND = matrices_.proj.backward_input(p, g, batch, grad_proj_ND, s.proj_state);
      matrices_.proj.backward_weights(p, g, batch, grad_proj_ND, s.heads_ND, s.proj_state);
    }
    const std::array grad_qkv_N3D{
        ops_.attention_backward(grad_heads_ND, s.qkv_N3D, s.heads_ND, attention_shape(batch), std::move(s.attention))};
    s.qkv_N3D.reset();
    s.heads_ND.reset();
    ops_.bias_grad(g[attn_b], grad_qkv_N3D[0]);
    const auto grad_norm1_ND = matrices_.attn.backward_input(p, g, batch, grad_qkv_N3D, s.attn_state);
    at::Tensor normed_ND;
    auto grad_x_ND = norm_backward({grad_norm1_ND, grad_ND, s.x_ND, s.norm1, p[ln1_w]}, p[ln1_b],
                                   {g[ln1_w], g[ln1_b], nullptr}, matrices_.attn.needs_input(g) ? &normed_ND : nullptr);
    matrices_.attn.backward_weights(p, g, batch, grad_qkv_N3D, normed_ND, s.attn_state);
    return grad_x_ND;
  }

  AttentionShape attention_shape(const MicroBatch& batch) const {
    AttentionShape shape{batch.rows, batch.length, config_.num_heads, config_.embed_size / config_.num_heads};
    shape.packing = batch.packing.get();
    if (dropping(batch)) {
      shape.dropout = config_.dropout;
      shape.dropout_place = {batch.sample_keys, place(3) * kDropoutIndexSpread};
    }
    return shape;
  }

  const Ops& ops_;
  ModelConfig config_;
  int index_;
  BlockMatrices matrices_;
  std::vector<int> parameters_;
  std::string name_;
};

}  // namespace

void detail::add_mingpt_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  const int token = parameter_index(decoder, "transformer.wte.weight");
  decoder.layers.push_back(std::make_unique<SumEmbeddingLayer>(
      ops, decoder, std::vector<int>{token, parameter_index(decoder, "transformer.wpe.weight")}));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder, std::make_unique<BlockLayer>(ops, decoder, block));
  }
  decoder.loss = make_head(
      ops, decoder,
      {parameter_index(decoder, "transformer.ln_f.weight"), parameter_index(decoder, "transformer.ln_f.bias"), token});
}

}  // namespace fsdp
