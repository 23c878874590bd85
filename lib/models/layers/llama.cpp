// Llama-family decoders: token embedding, gated blocks, head.
#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <memory>
#include <string>

#include "lib/base/error.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/decoder_block.hpp"

namespace fsdp {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const Ops& ops, const ModelConfig& config, int parameter)
      : ops_(ops), config_(config), parameters_{parameter} {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    auto x_ND = ops_.embed(p[0], {}, batch.ids_N, detail::place_of(batch));
    if (config_.traits.scaled_embeddings) x_ND.mul_(scale(x_ND));
    return x_ND;
  }

  at::Tensor backward(LayerParams, LayerGrads grads, const MicroBatch& batch, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    if (grads[0] == nullptr) return {};
    Ops::finish(*grads[0]);
    auto grad = grad_ND;
    if (config_.traits.scaled_embeddings) grad = grad * scale(grad);
    if (config_.traits.padding_id >= 0)
      grad = grad.masked_fill(batch.ids_N.eq(config_.traits.padding_id).unsqueeze(1), 0.0);
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
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

}  // namespace

void detail::add_llama_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw UsageError("--dropout: Llama and its kin have none");
  const auto rope = std::make_shared<RopeCache>(ops, rope_frequencies(config));
  auto local_rope = rope;
  if (config.traits.local_rope_theta > 0)
    local_rope = std::make_shared<RopeCache>(ops, rope_frequencies(config, /*slides=*/true));
  const int token = parameter_index(decoder, "model.embed_tokens.weight");
  decoder.layers.push_back(std::make_unique<EmbeddingLayer>(ops, config, token));
  for (int block = 0; block < config.num_layers; ++block) {
    add_block(decoder,
              std::make_unique<GatedBlock>(ops, decoder, block, config.traits.slides(block) ? local_rope : rope));
  }
  const int head = config.tie_word_embeddings ? token : parameter_index(decoder, "lm_head.weight");
  decoder.loss = make_head(ops, config, {parameter_index(decoder, "model.norm.weight"), head});
}

}  // namespace fsdp
