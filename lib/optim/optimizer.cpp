#include "lib/optim/optimizer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "lib/tensor/memory_scope.hpp"

namespace fsdp {

Optimizer::Optimizer(const Ops& ops, std::vector<OptimizerParam> params, const OptimizerOptions& options)
    : ops_(ops), params_(std::move(params)), options_(options) {}

void Optimizer::add_state(const std::string& key, at::ScalarType dtype) {
  State state{key, {}};
  for (const auto& [master_weight, decay] : params_) {
    const MemoryScope scope(MemoryCategory::optimizer, ops_.is_on_host(master_weight));
    state.tensors.push_back(at::zeros_like(master_weight, master_weight.options().dtype(dtype)));
  }
  states_.push_back(std::move(state));
}

std::vector<std::string> Optimizer::state_keys() const {
  std::vector<std::string> keys;
  for (const auto& state : states_) keys.push_back(state.key);
  return keys;
}

at::Tensor Optimizer::state(std::string_view key, std::size_t param) const {
  const auto at = std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.key == key; });
  TORCH_CHECK(at != states_.end(), "this optimizer has no state ", key);
  return at->tensors.at(param);
}

std::vector<at::Tensor> Optimizer::states(std::string_view key, const std::vector<std::size_t>& params) const {
  std::vector<at::Tensor> chosen;
  for (const auto param : params) chosen.push_back(state(key, param));
  return chosen;
}

void Optimizer::step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor) {
  const at::NoGradGuard no_grad;
  ++steps_;
  step_group(gradients, {{}, {}, lr, options_.weight_decay, grad_divisor, steps_}, true);
  step_group(gradients, {{}, {}, lr, 0.0, grad_divisor, steps_}, false);
}

void Optimizer::step_group(const std::vector<at::Tensor>& gradients, UpdateGroup group, bool decay) {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].decay != decay) continue;
    members.push_back(i);
    group.params.push_back(params_[i].master_weight);
    group.grads.push_back(gradients[i]);
  }
  if (!members.empty()) update(group, members);
}

}  // namespace fsdp
