#include "lib/models/layers/embeddings.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/layers/dropout.hpp"
#include "lib/models/layers/token_adapters.hpp"

namespace fsdp::detail {
namespace {

class TokenEmbeddingLayer final : public Layer {
 public:
  TokenEmbeddingLayer(const Ops& ops, const Decoder& decoder, const std::string& module)
      : ops_(ops),
        config_(decoder.config),
        adapter_(ops, decoder, module),
        has_adapter_(!adapter_.parameters().empty()),
        parameters_{parameter_index(decoder, module + ".weight")} {
    parameters_.insert(parameters_.end(), adapter_.parameters().begin(), adapter_.parameters().end());
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    const auto& batch = step.batch;
    auto x_ND = ops_.embed(p[0], {}, batch.ids_N, token_positions(batch));
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
    ops_.embed_backward(&grads[0]->grad, nullptr, grad, batch.ids_N, token_positions(batch));
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
  EmbeddingAdapter adapter_;
  bool has_adapter_;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

class SumEmbeddingLayer final : public Layer {
 public:
  SumEmbeddingLayer(const Ops& ops, const Decoder& decoder, const std::string& tokens, const std::string& positions)
      : ops_(ops),
        config_(decoder.config),
        of_tokens_(ops, decoder, tokens),
        of_positions_(ops, decoder, positions),
        parameters_{parameter_index(decoder, tokens + ".weight"), parameter_index(decoder, positions + ".weight")} {
    for (const auto* adapter : {&of_tokens_, &of_positions_})
      parameters_.insert(parameters_.end(), adapter->parameters().begin(), adapter->parameters().end());
    has_adapter_ = parameters_.size() > kTables;
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  bool is_block() const override { return false; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor&, std::unique_ptr<LayerState>*) override {
    const auto& batch = step.batch;
    auto x_ND = ops_.embed(p[0], has_adapter_ ? at::Tensor() : p[1], batch.ids_N, token_positions(batch));
    if (has_adapter_) {
      const auto positions_N = positions_of(batch);
      auto of_positions_ND = ops_.embed(p[1], {}, positions_N, token_positions(batch));
      of_tokens_.forward(p.subspan(kTables), batch, batch.ids_N, x_ND);
      of_positions_.forward(p.subspan(first_of_positions()), batch, positions_N, of_positions_ND);
      ops_.add_bias(x_ND, of_positions_ND, {});
    }
    if (drops(config_, batch)) drop(ops_, x_ND, batch, kEmbeddingDropout, config_.dropout);
    return x_ND;
  }

  at::Tensor backward(LayerParams p, LayerGrads grads, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState>) override {
    const auto& batch = step.batch;
    auto grad = grad_ND;
    if (drops(config_, batch)) drop(ops_, grad, batch, kEmbeddingDropout, config_.dropout);
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
      ops_.embed_backward(sum(0), sum(1), grad, batch.ids_N, token_positions(batch));
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
  EmbeddingAdapter of_tokens_, of_positions_;
  bool has_adapter_ = false;
  std::vector<int> parameters_;
  std::string name_ = "embedding";
};

}  // namespace

std::unique_ptr<Layer> make_token_embedding(const Ops& ops, const Decoder& decoder, const std::string& module) {
  return std::make_unique<TokenEmbeddingLayer>(ops, decoder, module);
}

std::unique_ptr<Layer> make_sum_embedding(const Ops& ops, const Decoder& decoder, const std::string& tokens,
                                          const std::string& positions) {
  return std::make_unique<SumEmbeddingLayer>(ops, decoder, tokens, positions);
}

}  // namespace fsdp::detail
