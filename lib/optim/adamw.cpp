#include "lib/optim/adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "lib/tensor/memory_scope.hpp"

namespace fsdp {

AdamW::AdamW(const Ops& ops, std::vector<at::Tensor> master_weights, std::vector<bool> decay,
             const AdamWOptions& options)
    : ops_(ops), master_weights_(std::move(master_weights)), decay_(std::move(decay)), options_(options) {
  for (const auto& master : master_weights_) {
    const MemoryScope scope(MemoryCategory::optimizer, ops_.is_on_host(master));
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
  AdamWUpdate update{{},
                     {},
                     {},
                     {},
                     lr,
                     options_.beta1,
                     options_.beta2,
                     options_.eps,
                     decay ? options_.weight_decay : 0.0,
                     steps_,
                     grad_divisor};
  for (std::size_t i = 0; i < master_weights_.size(); ++i) {
    if (decay_[i] != decay) continue;
    update.params.push_back(master_weights_[i]);
    update.grads.push_back(gradients[i]);
    update.exp_avg.push_back(exp_avg_[i]);
    update.exp_avg_sq.push_back(exp_avg_sq_[i]);
  }
  if (!update.params.empty()) ops_.adamw(update);
}

}  // namespace fsdp
