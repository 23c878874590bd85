#pragma once
// A residual network that learns a function of eight numbers. Defines the layers that the engine is given: a layer has
// its own forward and backward pass and does not know of ranks and shards.
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/layer.hpp"

constexpr std::int64_t kInputs = 8, kWidth = 48, kBlocks = 3;

/// Returns the inputs of samples, computed from the sample numbers alone, so that every rank can make its own samples.
inline at::Tensor inputs_of(const at::Tensor& ids_N) {
  const auto waves = at::arange(1, kInputs + 1, at::kFloat) * 0.37;
  return at::sin(ids_N.to(at::kFloat).unsqueeze(1) * waves);
}
inline at::Tensor targets_of(const at::Tensor& ids_N) {
  const auto x = inputs_of(ids_N);
  return at::sin(2 * x.select(1, 0)) + x.select(1, 1) * x.select(1, 2) - 0.5 * x.select(1, 3);
}

class Named : public fsdp::Layer {
 public:
  Named(std::string name, std::vector<int> parameters) : name_(std::move(name)), parameters_(std::move(parameters)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

 private:
  std::string name_;
  std::vector<int> parameters_;
};

/// x = inputs W^T
class First : public Named {
 public:
  using Named::Named;
  bool is_block() const override { return false; }
  at::Tensor forward(fsdp::LayerParams p, const fsdp::StepContext& step, const at::Tensor&,
                     std::unique_ptr<fsdp::LayerState>*) override {
    return fsdp::host_ops().linear(inputs_of(step.batch.ids_N), p[0]);
  }
  at::Tensor backward(fsdp::LayerParams, fsdp::LayerGrads g, const fsdp::StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<fsdp::LayerState>) override {
    fsdp::host_ops().weight_grad(g[0], grad_ND, inputs_of(step.batch.ids_N));
    return {};
  }
};

/// x + relu(x A^T) B^T
class Block : public Named {
 public:
  using Named::Named;
  bool is_block() const override { return true; }
  at::Tensor forward(fsdp::LayerParams p, const fsdp::StepContext&, const at::Tensor& x_ND,
                     std::unique_ptr<fsdp::LayerState>* keep) override {
    const auto hidden = at::relu(fsdp::host_ops().linear(x_ND, p[0]));
    if (keep != nullptr) *keep = std::make_unique<State>(x_ND, hidden);
    return x_ND + fsdp::host_ops().linear(hidden, p[1]);
  }
  at::Tensor backward(fsdp::LayerParams p, fsdp::LayerGrads g, const fsdp::StepContext&, const at::Tensor& grad_ND,
                      std::unique_ptr<fsdp::LayerState> state) override {
    const auto& ops = fsdp::host_ops();
    const auto& [x_ND, hidden] = static_cast<const State&>(*state);
    const auto grad_hidden = ops.linear_backward(grad_ND, p[1]) * hidden.gt(0);
    ops.weight_grad(g[1], grad_ND, hidden);
    ops.weight_grad(g[0], grad_hidden, x_ND);
    return grad_ND + ops.linear_backward(grad_hidden, p[0]);
  }

 private:
  struct State : fsdp::LayerState {
    State(at::Tensor x, at::Tensor h) : x_ND(std::move(x)), hidden(std::move(h)) {}
    at::Tensor x_ND, hidden;
  };
};

/// (x w - target)^2, summed over the samples.
class Loss : public fsdp::LossLayer {
 public:
  explicit Loss(int parameter) : parameters_{parameter} {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }
  void forward(fsdp::LayerParams p, const fsdp::StepContext& step, const at::Tensor& x_ND) override {
    *step.sums += sum_of(error_of(p, step, x_ND));
  }
  void forward_backward(fsdp::LayerParams p, fsdp::LayerGrads g, const fsdp::StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    const auto& ops = fsdp::host_ops();
    const auto error = error_of(p, step, x_ND);
    const auto grad = (2 * step.grad_scale.value * error).unsqueeze(1);
    ops.weight_grad(g[0], grad, x_ND);
    if (grad_x_ND != nullptr) *grad_x_ND = ops.linear_backward(grad, p[0]);
    *step.sums += sum_of(error);
  }

 private:
  static at::Tensor error_of(fsdp::LayerParams p, const fsdp::StepContext& step, const at::Tensor& x_ND) {
    return fsdp::host_ops().linear(x_ND, p[0]).squeeze(1) - targets_of(step.batch.ids_N);
  }
  static fsdp::StepSums sum_of(const at::Tensor& error) {
    fsdp::StepSums sum;
    sum.nats = (error * error).sum(at::kDouble).item<double>();
    sum.weight = static_cast<double>(error.numel());
    return sum;
  }
  std::string name_ = "loss";
  std::vector<int> parameters_;
};
