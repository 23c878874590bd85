// A loss that a layer adds to the model's: a named sum, and its gradient.
#include "tests/support/small_model.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>

#include <utility>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/sharding/wrap.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A layer whose output costs its squares.
class WithPenalty final : public Layer {
 public:
  explicit WithPenalty(Layer& layer) : layer_(layer) {}
  const std::string& name() const override { return layer_.name(); }
  const std::vector<int>& parameters() const override { return layer_.parameters(); }
  bool is_block() const override { return layer_.is_block(); }
  std::vector<std::string> sums() const override { return {"squares"}; }

  at::Tensor forward(LayerParams params, const StepContext& step, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) override {
    std::unique_ptr<LayerState> inner;
    auto out_ND = layer_.forward(params, step, x_ND, state == nullptr ? nullptr : &inner);
    if (step.sums != nullptr) step.sums->add("squares", out_ND.square().sum());
    if (state != nullptr) *state = std::make_unique<State>(out_ND, std::move(inner));
    return out_ND;
  }
  at::Tensor backward(LayerParams params, LayerGrads grads, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& kept = static_cast<State&>(*state);
    const auto all_ND = grad_ND + kept.out_ND * (2 * step.grad_scale.value);
    return layer_.backward(params, grads, step, all_ND, std::move(kept.inner));
  }

 private:
  struct State final : LayerState {
    State(at::Tensor out, std::unique_ptr<LayerState> state) : out_ND(std::move(out)), inner(std::move(state)) {}
    at::Tensor out_ND;
    std::unique_ptr<LayerState> inner;
  };
  Layer& layer_;
};

/// A minGPT whose blocks have penalties.
class Penalized {
 public:
  Penalized(ProcessGroup& world, const EnginePolicy& policy)
      : decoder_(make_decoder(small_model(), host_ops())), mesh_(make_mesh(world, policy.sharding, 0)) {
    EngineInput input;
    for (const auto& layer : decoder_.layers) {
      if (layer->is_block()) penalties_.push_back(std::make_unique<WithPenalty>(*layer));
      input.layers.push_back(layer->is_block() ? penalties_.back().get() : layer.get());
    }
    input.loss = decoder_.loss.get();
    std::vector<WrapInput> wraps;
    for (const auto& spec : decoder_.parameters) {
      ParamLayout layout;
      layout.name = spec.name;
      layout.shape = spec.shape;
      input.parameters.push_back(layout);
      wraps.push_back({layout.elements(), spec.block});
    }
    input.units = make_units(wraps, parse_wrap("block"));
    input.ops = &host_ops();
    input.mesh = &mesh_;
    mesh_.connect([](ProcessGroup& ranks) { return make_host_collectives(ranks); });
    engine = std::make_unique<Engine>(input, policy);
    for (std::size_t i = 0; i < engine->num_parameters(); ++i) {
      const auto rows = engine->master_weight(i);
      rows.copy_(
          at::arange(rows.numel(), at::kFloat).mul_(0.37 + static_cast<double>(i)).sin_().mul_(0.2).view(rows.sizes()));
    }
    engine->sync_parameters();
  }

  /// Moves all master weights along their gradients.
  void move(double by) {
    for (std::size_t i = 0; i < engine->num_parameters(); ++i) engine->master_weight(i).add_(gradients.at(i), by);
    engine->sync_parameters();
  }
  void keep_gradients() {
    gradients.clear();
    for (std::size_t i = 0; i < engine->num_parameters(); ++i) gradients.push_back(engine->gradient(i).clone());
  }

 private:
  Decoder decoder_;
  std::vector<std::unique_ptr<Layer>> penalties_;
  Mesh mesh_;

 public:
  std::vector<at::Tensor> gradients;
  std::unique_ptr<Engine> engine;  ///< destroyed before the members that it refers to
};

MicroBatch batch_of_8() {
  MicroBatch batch;
  batch.rows = 2;
  batch.length = 4;
  batch.ids_N = at::arange(8, at::kInt);
  batch.targets_N = at::arange(8, at::kInt).add_(1);
  return batch;
}

double total(StepSums sums) {
  host_ops().fetch(sums);
  REQUIRE(sums.named.size() == 1);  // both blocks add to one sum
  return sums.nats + sums.named[0].value;
}

}  // namespace

TEST_SUITE("fsdp/sums of layers") {
  TEST_CASE("a layer's loss is a sum of the step, once with recomputation, too, and has its gradient") {
    run_thread_ranks(1, 1, [](ProcessGroup& world) {
      const at::NoGradGuard no_grad;
      EnginePolicy plain, again;
      again.checkpoint_every = 1;
      Penalized model(world, plain), recomputed(world, again);
      const auto batch = batch_of_8();
      auto sums = model.engine->forward_backward(batch, {}, 1.0);
      model.keep_gradients();
      const auto loss = total(sums);
      CHECK(total(recomputed.engine->forward_backward(batch, {}, 1.0)) == loss);
      recomputed.keep_gradients();
      CHECK(total(model.engine->evaluate(batch)) == doctest::Approx(loss).epsilon(1e-6));
      double squares = 0;
      for (std::size_t i = 0; i < model.gradients.size(); ++i) {
        squares += model.gradients[i].square().sum().item<double>();
        CHECK(at::equal(recomputed.gradients[i], model.gradients[i]));
      }
      // The slope of the loss along its gradient is the square of the gradient's norm.
      const double by = 1e-3 / squares;
      model.move(by);
      const auto above = total(model.engine->evaluate(batch));
      model.move(-2 * by);
      const auto below = total(model.engine->evaluate(batch));
      CHECK((above - below) / (2 * by) == doctest::Approx(squares).epsilon(2e-2));
    });
  }
}
