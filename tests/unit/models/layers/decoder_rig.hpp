#pragma once
// Runs the layers of a whole decoder without an engine.
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <limits>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/layers/decoder.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {

struct Model {
  explicit Model(const ModelConfig& config, const Ops& with = host_ops(), const DecoderOptions& options = {})
      : ops(with), decoder(make_decoder(config, with, options)) {
    for (const auto& spec : decoder.parameters) {
      auto sizes = spec.shape;
      const auto align = row_alignment(spec);
      sizes[0] = (sizes[0] + align - 1) / align * align;
      auto full = at::zeros(sizes);
      auto real = full.narrow(0, 0, spec.shape[0]);
      real.normal_(spec.init == Init::ones ? 1.0 : 0.0, 0.2);
      parameters.push_back(full);
    }
  }

  std::vector<at::Tensor> of(const std::vector<int>& indices) const {
    std::vector<at::Tensor> list;
    for (const int i : indices) list.push_back(parameters[static_cast<std::size_t>(i)]);
    return list;
  }

  StepSums sums_of(const MicroBatch& batch) const {
    auto names = decoder.loss->sums();
    if (batch.joint != nullptr) {
      for (const auto& name : batch.joint->sums()) names.push_back(name);
    }
    return StepSums(names);
  }

  StepSums loss(const MicroBatch& batch) const {
    at::Tensor x;
    for (const auto& layer : decoder.layers) x = layer->forward(of(layer->parameters()), batch, x, nullptr);
    auto sum = sums_of(batch);
    decoder.loss->forward(of(decoder.loss->parameters()), {batch, 0.0, &sum}, x);
    ops.fetch(sum);
    return sum;
  }

  StepSums gradients(const MicroBatch& batch, double scale, std::vector<GradSlot>& slots) const {
    slots.clear();
    for (const auto& p : parameters) slots.push_back({at::empty_like(p), false});
    const auto grads_of = [&](const std::vector<int>& indices) {
      std::vector<GradSlot*> list;
      for (const int i : indices) list.push_back(&slots[static_cast<std::size_t>(i)]);
      return list;
    };
    std::vector<std::unique_ptr<LayerState>> states(decoder.layers.size());
    at::Tensor x, grad;
    for (std::size_t s = 0; s < states.size(); ++s) {
      x = decoder.layers[s]->forward(of(decoder.layers[s]->parameters()), batch, x, &states[s]);
    }
    const auto& head = *decoder.loss;
    auto result = sums_of(batch);
    decoder.loss->forward_backward(of(head.parameters()), grads_of(head.parameters()), {batch, scale, &result}, x,
                                   &grad);
    for (std::size_t s = states.size(); s-- > 0;) {
      auto& layer = *decoder.layers[s];
      grad = layer.backward(of(layer.parameters()), grads_of(layer.parameters()), batch, grad, std::move(states[s]));
    }
    for (auto& slot : slots) Ops::finish(slot);
    ops.fetch(result);
    return result;
  }

  const Ops& ops;
  Decoder decoder;
  std::vector<at::Tensor> parameters;
};

inline MicroBatch random_batch(std::int64_t rows, std::int64_t length, std::int64_t vocab) {
  MicroBatch batch;
  batch.rows = rows;
  batch.length = length;
  batch.ids_N = at::randint(0, vocab, {rows * length}, at::kInt);
  batch.targets_N = at::randint(0, vocab, {rows * length}, at::kInt);
  batch.sample_keys = at::randint(0, std::numeric_limits<std::int64_t>::max(), {rows}, at::kLong);
  return batch;
}

inline double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
}

/// Tests one parameter at a time, so that large parameters do not hide an error in a small one.
inline void check_derivatives(Model& model, const MicroBatch& batch) {
  std::vector<GradSlot> slots;
  const auto loss = model.gradients(batch, 1.0, slots);
  CHECK(loss.weight == batch.rows * batch.length);
  CHECK(loss.nats == doctest::Approx(model.loss(batch).nats).epsilon(1e-6));
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    INFO(model.decoder.parameters[p].name);
    auto& parameter = model.parameters[p];
    const auto before = parameter.clone();
    // The slope is largest along the gradient.
    const auto direction = slots[p].grad / slots[p].grad.norm();
    const double step = 2e-3 * before.norm().item<double>();
    parameter.copy_(before + step * direction);
    const double up = model.loss(batch).nats;
    parameter.copy_(before - step * direction);
    const double down = model.loss(batch).nats;
    parameter.copy_(before);
    const double slope = (up - down) / (2 * step);
    // Float32 losses of about 200 have errors of 1e-5, while the change is at least 1e-2; the cubic term of the step
    // adds as much.
    CHECK(inner_product(slots[p].grad, direction) == doctest::Approx(slope).epsilon(1e-2));
  }
}

/// Decodes a row of 10 tokens token by token and in pieces, and compares with the whole row at once.
inline void check_decoding(const Model& model, const MicroBatch& batch) {
  const auto layers = static_cast<int>(model.decoder.config.num_layers);
  at::Tensor whole;
  for (const auto& layer : model.decoder.layers) {
    whole = layer->forward(model.of(layer->parameters()), batch, whole, nullptr);
  }
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{10}, {4, 1, 1, 4}, std::vector<std::int64_t>(10, 1)}) {
    std::vector<LayerCache> caches(static_cast<std::size_t>(layers));
    std::int64_t done = 0;
    for (const auto n : pieces) {
      const MicroBatch part{batch.ids_N.narrow(0, done, n), {}, 1, n, {}, done};
      auto& embedding = *model.decoder.layers[0];
      auto x = embedding.forward(model.of(embedding.parameters()), part, {}, nullptr);
      for (int block = 0; block < layers; ++block) {
        const auto params = model.of(model.decoder.layers[static_cast<std::size_t>(block) + 1]->parameters());
        x = model.decoder.decode_block(block, params, x, caches[static_cast<std::size_t>(block)], done);
      }
      CHECK(relative_error(x, whole.narrow(0, done, n)) < 1e-5);
      done += n;
    }
  }
}

}  // namespace fsdp::test
