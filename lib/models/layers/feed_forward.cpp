// The outputs of activations are not kept: the backward passes compute them again. Gradients of inputs come before
// those of weights, which need these outputs.
#include "lib/models/layers/feed_forward.hpp"

#include <array>
#include <utility>

#include "lib/compute/ops/ops.hpp"

namespace fsdp::detail {
namespace {

// --- gated

struct GatedState final : LayerState {
  std::vector<at::Tensor> products;  ///< of `in`; from backward_input() on, their gradients
  LinearState in, down;
};

class GatedFeedForward final : public FeedForward {
 public:
  GatedFeedForward(const BlockSite& site, const std::vector<Linear>& in, const Linear& down, GateActivation activation)
      : ops_(site.ops), activation_(activation), in_(site.group(in, 2)), down_(site, down, OutputBias::in_sum, 3) {}

  Output forward(LayerParams p, const StepContext& step, at::Tensor in_ND,
                 std::unique_ptr<LayerState>* state) const override {
    GatedState s;
    auto* keep = state != nullptr ? &s : nullptr;
    auto products = in_.make_outputs(p, in_ND);
    in_.forward(p, step.batch, in_ND, products, keep ? &keep->in : nullptr, in_.biases(p));
    in_ND.reset();
    auto [gate_NF, up_NF] = parts_of(products);
    const auto act_NF = ops_.gated(activation_, gate_NF, up_NF);
    gate_NF.reset(), up_NF.reset();
    if (keep != nullptr) keep->products = std::move(products);
    products.clear();
    auto out_ND = down_.forward(p, step.batch, act_NF, keep ? &keep->down : nullptr);
    if (keep != nullptr) *state = std::make_unique<GatedState>(std::move(s));
    return {std::move(out_ND), act_NF};
  }

  at::Tensor backward_input(LayerParams p, LayerGrads g, const StepContext& step, at::Tensor grad_ND,
                            LayerState& state) const override {
    auto& s = static_cast<GatedState&>(state);
    const auto& down = down_.matrix();
    {
      const std::array grads_ND{std::move(grad_ND)};
      auto act_NF = down.backward_input(p, g, step.batch, grads_ND, s.down);
      auto [gate_NF, up_NF] = parts_of(s.products);
      ops_.gated_backward(activation_, act_NF, gate_NF, up_NF);  // act: the output; gate, up: their gradients
      down.backward_weights(p, g, step.batch, grads_ND, act_NF, s.down);
    }
    return in_.backward_input(p, g, step.batch, s.products, s.in);
  }

  bool needs_input(LayerGrads g) const override { return in_.needs_input(g); }

  void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                        LayerState& state) const override {
    auto& s = static_cast<GatedState&>(state);
    in_.backward_weights(p, g, step.batch, s.products, in_ND, s.in);
    s.products.clear();
  }

  OutputBias output_bias_by() const override { return down_.bias_by(); }
  int output_bias() const override { return down_.bias_of_frame(); }

 private:
  /// Gate and up.
  static std::pair<at::Tensor, at::Tensor> parts_of(const std::vector<at::Tensor>& products) {
    if (products.size() == 2) return {products[0], products[1]};
    const auto f = products[0].size(1) / 2;
    return {products[0].narrow(1, 0, f), products[0].narrow(1, f, f)};
  }

  const Ops& ops_;
  GateActivation activation_;
  LinearGroup in_;
  OutputProjection down_;
};

// --- GELU

struct GeluState final : LayerState {
  at::Tensor pre_NF;       ///< before GELU
  at::Tensor grad_pre_NF;  ///< from backward_input() on
  at::Tensor in_ND;        ///< held from backward_weights() on
  LinearState up, down;
};

/// The common part of both kinds of GELU.
class GeluFeedForward : public FeedForward {
 public:
  bool needs_input(LayerGrads g) const override { return up_.needs_input(g); }

  void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                        LayerState& state) const override {
    auto& s = static_cast<GeluState&>(state);
    const std::array grads_NF{s.grad_pre_NF};
    up_.backward_weights(p, g, step.batch, grads_NF, in_ND, s.up);
  }

  OutputBias output_bias_by() const override { return down_.bias_by(); }
  int output_bias() const override { return down_.bias_of_frame(); }

 protected:
  /// \param up  without its bias, if that is not the group's
  GeluFeedForward(const BlockSite& site, const Linear& up, const Linear& down, OutputBias bias)
      : ops_(site.ops), up_(site.group({up}, 2)), down_(site, down, bias, 3) {}

  const Ops& ops_;
  LinearGroup up_;
  OutputProjection down_;
};

class TanhGeluFeedForward final : public GeluFeedForward {
 public:
  TanhGeluFeedForward(const BlockSite& site, const Linear& up, const Linear& down)
      : GeluFeedForward(site, up.without_bias(), down, OutputBias::in_sum_and_norm), up_bias_(up.bias) {}

  Output forward(LayerParams p, const StepContext& step, at::Tensor in_ND,
                 std::unique_ptr<LayerState>* state) const override {
    GeluState s;
    auto* keep = state != nullptr ? &s : nullptr;
    // The bias before GELU is added in the product, or in float32 by GELU's pass, which costs nothing there.
    const bool in_product = up_.adds_bias_in_product(p, in_ND.scalar_type());
    const auto bias_F = at_place(p, up_bias_);
    auto pre_NF = up_.project(p, step.batch, in_ND, keep ? &keep->up : nullptr, in_product ? bias_F : at::Tensor());
    in_ND.reset();
    const auto act_NF = ops_.bias_gelu(pre_NF, in_product ? at::Tensor() : bias_F);
    if (keep != nullptr) keep->pre_NF = pre_NF;
    pre_NF.reset();
    auto out_ND = down_.forward(p, step.batch, act_NF, keep ? &keep->down : nullptr);
    if (keep != nullptr) *state = std::make_unique<GeluState>(std::move(s));
    return {std::move(out_ND), {}};
  }

  at::Tensor backward_input(LayerParams p, LayerGrads g, const StepContext& step, at::Tensor grad_ND,
                            LayerState& state) const override {
    auto& s = static_cast<GeluState&>(state);
    const auto& down = down_.matrix();
    {
      const std::array grads_ND{std::move(grad_ND)};
      s.grad_pre_NF = down.backward_input(p, g, step.batch, grads_ND, s.down);
      at::Tensor act_NF;
      ops_.bias_gelu_backward(s.grad_pre_NF, s.pre_NF, at_place(g, up_bias_), down.needs_input(g) ? &act_NF : nullptr);
      s.pre_NF.reset();
      down.backward_weights(p, g, step.batch, grads_ND, act_NF, s.down);
    }
    const std::array grads_NF{s.grad_pre_NF};
    return up_.backward_input(p, g, step.batch, grads_NF, s.up);
  }

  void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                        LayerState& state) const override {
    GeluFeedForward::backward_weights(p, g, step, in_ND, state);
    static_cast<GeluState&>(state).grad_pre_NF.reset();
  }

 private:
  int up_bias_;
};

class ExactGeluFeedForward final : public GeluFeedForward {
 public:
  ExactGeluFeedForward(const BlockSite& site, const Linear& up, const Linear& down)
      : GeluFeedForward(site, up, down, OutputBias::in_product), up_bias_(up.bias) {}

  Output forward(LayerParams p, const StepContext& step, at::Tensor in_ND,
                 std::unique_ptr<LayerState>* state) const override {
    GeluState s;
    auto* keep = state != nullptr ? &s : nullptr;
    s.pre_NF = up_.project(p, step.batch, in_ND, keep ? &keep->up : nullptr, at_place(p, up_bias_));
    in_ND.reset();
    const auto act_NF = ops_.exact_gelu(s.pre_NF);
    auto out_ND = down_.forward(p, step.batch, act_NF, keep ? &keep->down : nullptr);
    if (keep != nullptr) *state = std::make_unique<GeluState>(std::move(s));
    return {std::move(out_ND), {}};
  }

  at::Tensor backward_input(LayerParams p, LayerGrads g, const StepContext& step, at::Tensor grad_ND,
                            LayerState& state) const override {
    auto& s = static_cast<GeluState&>(state);
    const auto& down = down_.matrix();
    {
      const std::array grads_ND{std::move(grad_ND)};
      const auto grad_act_NF = down.backward_input(p, g, step.batch, grads_ND, s.down);
      down.backward_weights(p, g, step.batch, grads_ND, down.needs_input(g) ? ops_.exact_gelu(s.pre_NF) : at::Tensor(),
                            s.down);
      s.grad_pre_NF = ops_.exact_gelu_backward(grad_act_NF, s.pre_NF);
      s.pre_NF.reset();
    }
    const std::array grads_NF{s.grad_pre_NF};
    return up_.backward_input(p, g, step.batch, grads_NF, s.up);
  }

  void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                        LayerState& state) const override {
    GeluFeedForward::backward_weights(p, g, step, in_ND, state);
    static_cast<GeluState&>(state).in_ND = in_ND;
  }

 private:
  int up_bias_;
};

}  // namespace

std::unique_ptr<FeedForward> make_gated_feed_forward(const BlockSite& site, const std::vector<Linear>& in,
                                                     const Linear& down, GateActivation activation) {
  return std::make_unique<GatedFeedForward>(site, in, down, activation);
}

std::unique_ptr<FeedForward> make_tanh_gelu_feed_forward(const BlockSite& site, const Linear& up, const Linear& down) {
  return std::make_unique<TanhGeluFeedForward>(site, up, down);
}

std::unique_ptr<FeedForward> make_exact_gelu_feed_forward(const BlockSite& site, const Linear& up, const Linear& down) {
  return std::make_unique<ExactGeluFeedForward>(site, up, down);
}

}  // namespace fsdp::detail
