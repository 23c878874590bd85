#include "lib/optim/adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "lib/tensor/memory_recorder.hpp"

namespace fsdp {

AdamW::AdamW(std::vector<at::Tensor> masters, std::vector<bool> decay, const AdamWOptions& options)
    : masters_(std::move(masters)), decay_(std::move(decay)), options_(options) {
  for (const auto& master : masters_) {
    const MemoryScope scope(MemoryCategory::optimizer, recorded_on_host(master));
    exp_avg_.push_back(at::zeros_like(master));
    exp_avg_sq_.push_back(at::zeros_like(master));
  }
}

void AdamW::step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor) {
  const at::NoGradGuard no_grad;
  ++steps_;
  step_group(gradients, lr, grad_divisor, true);
  step_group(gradients, lr, grad_divisor, false);
}

void AdamW::step_group(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor, bool decay) {
  std::vector<at::Tensor> params, grads, first, second;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (decay_[i] != decay) continue;
    params.push_back(masters_[i]);
    grads.push_back(gradients[i]);
    first.push_back(exp_avg_[i]);
    second.push_back(exp_avg_sq_[i]);
  }
  if (params.empty()) return;
  const auto options = params.front().options();
  const std::vector<at::Tensor> steps(params.size(), at::full({}, static_cast<double>(steps_), options));
  std::optional<at::Tensor> divisor;
  if (grad_divisor != 1.0) divisor = at::full({}, grad_divisor, options);
  if (simulating()) return;  // it updates in place and allocates nothing
  at::_fused_adamw_(params, grads, first, second, {}, steps, lr, options_.beta1, options_.beta2,
                    decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false, divisor,
                    std::nullopt);
}

}  // namespace fsdp
