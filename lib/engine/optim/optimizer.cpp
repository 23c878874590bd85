#include "lib/engine/optim/optimizer.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp {

OptimizerParam whole_param(const at::Tensor& master_weight, bool decay) {
  const ParamLayout layout{"", master_weight.sizes().vec(), 1, decay};
  return {master_weight, decay, layout, {0, layout.rows(), layout.rows()}};
}

Optimizer::Optimizer(OptimizerInput input) : input_(std::move(input)), states_(input_.params.size()) {}

void Optimizer::expect_child(bool chosen) {
  if (input_.options.child_tuning.mode != ChildTuning::task_driven) return;
  for (auto& states : states_) {
    std::erase_if(states, [](const auto& state) { return state.key == kChildFisher || state.key == kChildMask; });
  }
  choosing_child_ = !chosen;
  for (std::size_t i = 0; i < num_params(); ++i) {
    if (chooses_child(param(i)))
      add_child_state(i, chosen ? kChildMask : kChildFisher, chosen ? at::kByte : at::kFloat);
  }
}

void Optimizer::add_fisher(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients,
                           const std::vector<double>& divisors) {
  const WithoutAutograd guard;
  const MemoryScope scope(MemoryCategory::workspace);
  for (std::size_t n = 0; n < params.size(); ++n) {
    const auto i = params[n];
    if (!chooses_child(param(i))) continue;
    const auto scaled = gradients[n].mul(1.0 / divisors[i]);
    scaled.mul_(scaled);
    state(kChildFisher, i).add_(scaled);
  }
}

ChildSummary Optimizer::choose_child(ProcessGroup& ranks) {
  const WithoutAutograd guard;
  std::vector<std::size_t> chosen;
  std::vector<GradPart> parts;
  for (std::size_t i = 0; i < num_params(); ++i) {
    if (!chooses_child(param(i))) continue;
    chosen.push_back(i);
    parts.push_back({state(kChildFisher, i), param(i).range.num_rows * param(i).layout.row_elements()});
  }
  const auto child = fsdp::choose_child(ops(), parts, options().child_tuning.p, ranks);
  choosing_child_ = false;
  parts.clear();
  for (const auto i : chosen) {
    auto& fisher = states_[i].back();  // the state added last
    const auto sums = fisher.values.get();
    const MemoryScope scope(MemoryCategory::optimizer, ops().is_on_host(sums));
    fisher.values = sums.ge(static_cast<double>(child.least_kept)).to(at::kByte);
    fisher.key = kChildMask;
  }
  return child;
}

void Optimizer::mask_gradients(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients) const {
  const auto& child = options().child_tuning;
  for (std::size_t n = 0; n < params.size(); ++n) {
    const auto i = params[n];
    if (child.mode == ChildTuning::task_free) mask_at_random(ops(), param(i), gradients[n], child, steps_);
    if (child.mode == ChildTuning::task_driven && chooses_child(param(i))) gradients[n].mul_(state(kChildMask, i));
  }
}

void Optimizer::add_state(std::size_t param, const std::string& key, at::ScalarType dtype) {
  add_row_state(param, key, this->param(param).master_weight.sizes().slice(1), dtype);
}

/// Keeps the state in memory even if the other states are in a store, because choosing the child needs all of them at
/// once.
void Optimizer::add_child_state(std::size_t param, const std::string& key, at::ScalarType dtype) {
  const auto store = std::exchange(input_.store, nullptr);
  add_state(param, key, dtype);
  input_.store = store;
}

void Optimizer::add_state(const std::string& key, at::ScalarType dtype) {
  for (std::size_t i = 0; i < num_params(); ++i) add_state(i, key, dtype);
}

void Optimizer::add_rows(std::size_t param, OptimizerState state, at::ScalarType dtype) {
  if (is_frozen(param)) return;
  auto sizes = state.shape;
  sizes.front() = state.num_rows;
  const auto& master_weight = this->param(param).master_weight;
  if (input_.store != nullptr) {
    state.values = {*input_.store, input_.store->add(master_weight.place().group, sizes, dtype)};
  } else {
    const bool stored = master_weight.store() != nullptr;
    const MemoryScope scope(MemoryCategory::optimizer, stored || ops().is_on_host(master_weight.get()));
    const auto options = stored ? at::TensorOptions(ops().host()) : master_weight.get().options();
    state.values = at::zeros(sizes, options.dtype(dtype));
  }
  states_[param].push_back(std::move(state));
}

void Optimizer::add_row_state(std::size_t param, const std::string& key, at::IntArrayRef row_shape,
                              at::ScalarType dtype) {
  if (is_frozen(param)) return;
  const auto& layout = this->param(param).layout;
  const auto& range = this->param(param).range;
  auto shape = row_shape.vec();
  shape.insert(shape.begin(), range.padded_rows);  // the same padding as the gradient
  add_rows(param, {key, shape, {}, range.first_row, range.padded_rows}, dtype);
  auto& state = states_[param].back();
  state.shape.front() = layout.rows();
  state.num_rows = range.num_rows;
}

void Optimizer::add_replicated_state(std::size_t param, const std::string& key, at::IntArrayRef shape,
                                     at::ScalarType dtype) {
  add_rows(param, {key, shape.vec(), {}, 0, shape.front(), rank() == 0 ? 0 : shape.front()}, dtype);
}

void Optimizer::add_constant(std::size_t param, const std::string& key, const at::Tensor& values) {
  if (is_frozen(param)) return;
  const auto rows = values.size(0);
  states_[param].push_back({key, values.sizes().vec(), values, 0, rows, rank() == 0 ? 0 : rows, true});
}

at::Tensor Optimizer::state(std::string_view key, std::size_t param) const {
  const auto& states = states_.at(param);
  const auto at = std::find_if(states.begin(), states.end(), [&](const auto& state) { return state.key == key; });
  TORCH_CHECK(at != states.end(), "this parameter has no state ", key);
  return at->values.get();
}

std::vector<at::Tensor> Optimizer::states(std::string_view key, const std::vector<std::size_t>& params) const {
  std::vector<at::Tensor> chosen;
  for (const auto param : params) chosen.push_back(state(key, param));
  return chosen;
}

void Optimizer::sum_over_ranks(const at::Tensor& values) const {
  if (input_.ranks == nullptr || input_.ranks->size() == 1) return;
  const auto on_device = ops().to_device(values);
  const std::array<at::Tensor, 1> tensors{on_device};
  input_.ranks->all_reduce(tensors)->wait();
  if (!on_device.is_same(values)) ops().transfer(values, on_device);
}

at::Tensor Optimizer::exchange(const at::Tensor& parts) const {
  if (num_ranks() == 1) return parts;
  auto received = at::empty_like(parts);
  const TensorExchange one{parts, received};
  input_.ranks->all_to_all(std::span(&one, 1))->wait();
  return received;
}

std::pair<UpdateGroup, std::vector<std::size_t>> Optimizer::choose(const UpdateGroup& group,
                                                                   const std::vector<std::size_t>& params,
                                                                   const std::vector<std::size_t>& members) {
  auto chosen = group;
  chosen.params.clear();
  chosen.grads.clear();
  chosen.cast_params.clear();
  std::vector<std::size_t> chosen_params;
  for (const auto n : members) {
    chosen.params.push_back(group.params[n]);
    chosen.grads.push_back(group.grads[n]);
    if (!group.cast_params.empty()) chosen.cast_params.push_back(group.cast_params[n]);
    chosen_params.push_back(params[n]);
  }
  return {std::move(chosen), std::move(chosen_params)};
}

void Optimizer::adamw_update(const UpdateGroup& group, const std::vector<std::size_t>& params,
                             const std::vector<std::size_t>& members, const std::array<std::string, 2>& keys) const {
  if (members.empty()) return;
  const auto [chosen, chosen_params] = choose(group, params, members);
  ops().adamw({chosen, states(keys[0], chosen_params), states(keys[1], chosen_params), options().beta1, options().beta2,
               options().eps});
}

void Optimizer::step(const std::vector<at::Tensor>& gradients, double lr, double grad_divisor) {
  begin_step();
  step_part(all_params(), gradients, lr, {.divisor = grad_divisor});
}

void Optimizer::step_part(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients, double lr,
                          const GradScaling& scaling) {
  const WithoutAutograd guard;
  mask_gradients(params, gradients);
  UpdateGroup common;
  common.lr = lr;
  common.grad_divisor = scaling.divisor;
  common.decision = scaling.decision;
  common.cast_params = scaling.cast_params;
  common.step = steps_;
  common.weight_decay = options().weight_decay;
  step_group(params, gradients, common, true);
  common.weight_decay = 0;
  step_group(params, gradients, std::move(common), false);
}

bool Optimizer::supports_device_decision() const { return optimizer_type(options().kind).on_device; }

std::vector<std::size_t> Optimizer::all_params() const {
  std::vector<std::size_t> all(num_params());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void Optimizer::step_group(const std::vector<std::size_t>& params, const std::vector<at::Tensor>& gradients,
                           UpdateGroup group, bool decay) {
  std::vector<std::size_t> members;
  const auto cast_params = std::exchange(group.cast_params, {});
  for (std::size_t n = 0; n < params.size(); ++n) {
    const auto i = params[n];
    if (is_frozen(i) || param(i).decay != decay) continue;
    members.push_back(i);
    if (!cast_params.empty()) group.cast_params.push_back(cast_params[n]);
    group.params.push_back(param(i).master_weight.get());
    group.grads.push_back(gradients[n]);
  }
  if (!members.empty()) update(group, members);
}

}  // namespace fsdp
