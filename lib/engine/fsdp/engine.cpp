#include "lib/engine/fsdp/engine.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/engine/fsdp/engine_internal.hpp"
#include "lib/engine/fsdp/replica_sums.hpp"
#include "lib/engine/fsdp/shard_storage.hpp"
#include "lib/engine/fsdp/units.hpp"
#include "lib/engine/fsdp/update_and_gather.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

namespace fsdp {

Engine::Engine(const EngineInput& input, const EnginePolicy& policy) : input_(input), policy_(policy) {
  if (input_.mesh == nullptr || input_.loss == nullptr || input_.ops == nullptr || input_.layers.empty()) {
    throw std::logic_error("an engine needs layers, a loss, a mesh and operations");
  }
  const WithoutAutograd guard;
  storage_ = detail::make_shard_storage(input_, policy_);
  // Alone on the shard axis the full gradient is the shard: reducing more often would save nothing.
  if (input_.mesh->shard.size() == 1 && storage_->stays_in_memory()) policy_.reduce_every_micro_batch = false;
  units_ = std::make_unique<detail::Units>(input_, policy_, *storage_);
  replica_sums_ = std::make_unique<detail::ReplicaSums>(input_, policy_, counts_.replicate);
  const auto unit_of = [&](const auto& layer) { return units_->of(to_index(layer.parameters().front())).index; };
  int block = 0;
  for (const auto* layer : input_.layers) {
    layer_unit_.push_back(unit_of(*layer));
    const bool chosen = layer->is_block() && policy_.checkpoint_every > 0 && block % policy_.checkpoint_every == 0;
    checkpointed_.push_back(chosen);
    if (layer->is_block()) ++block;
  }
  loss_unit_ = unit_of(*input_.loss);
  first_backward_ = first_backward();
  first_gathers_ = first_gathers();
  const auto add_names = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      if (std::find(sum_names_.begin(), sum_names_.end(), name) == sum_names_.end()) sum_names_.push_back(name);
    }
  };
  for (const auto* layer : input_.layers) add_names(layer->sums());
  add_names(input_.loss->sums());
  // On a shard axis of one rank only reductions over replicas cross ranks, and parameters keep their addresses, as
  // graphs require.
  const bool records = policy_.graph_max_tokens > 0 && input_.ops->recorder() != nullptr &&
                       !units_->uses_peer_memory() && input_.mesh->shard.size() == 1 &&
                       shards_are_on_device(policy_, *storage_);
  if (records) graph_cache_ = std::make_unique<GraphCache>(*this);
  if (policy_.offload_activations && !input_.ops->on_host()) host_inputs_ = std::make_unique<HostInputs>(*input_.ops);
}

RecordingCounts Engine::recording_counts() const {
  return graph_cache_ == nullptr ? RecordingCounts() : graph_cache_->counts();
}

/// Waits for transfers that use memory of the engine. After a failure it does not wait, since a peer may be gone.
Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    units_->release_coming();
  } catch (const std::exception&) {
    // A peer has died; a destructor has no way to report it.
  }
}

ShardRange Engine::range(std::size_t param) const {
  return shard_range(input_.parameters[param].rows(), input_.mesh->shard.size(), input_.mesh->shard.rank());
}

bool Engine::uses_peer_memory() const { return units_->uses_peer_memory(); }

const StoredTensor& Engine::stored_master_weight(std::size_t param) { return units_->master_weight(param); }

at::Tensor Engine::gradient(std::size_t param) { return units_->gradient(param); }

at::Tensor Engine::all_gather_input(std::size_t param) {
  const auto own = units_->of(param).gathered->local_shard(units_->place(param)).get();
  return own.is_same(units_->master_weight(param).get()) ? at::Tensor() : own;
}

void Engine::sync_parameters() {
  if (unfinished_ != 0) throw std::logic_error("a shard was changed, and HeldShard::finish() was not called");
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(observers_, "publish parameters", "schedule");
  storage_->settle();
  units_->release_coming();  // it was gathered from the old shards
  units_->forget_gathered();
  for (const auto& unit : *units_) {
    {
      const EngineObservers::Scope unit_scope(
          observers_, [&] { return "publish " + unit->name; }, "optimizer");
      storage_->cast(*unit);
    }
    unit->gathered->begin_sync();
  }
  for (const auto& unit : *units_) unit->gathered->finish_sync();
}

std::vector<Action> Engine::plan(bool training, MicroBatchPosition place) {
  ScheduleInput input;
  input.layer_unit = layer_unit_;
  input.checkpointed = checkpointed_;
  input.loss_unit = loss_unit_;
  input.first_backward = first_backward_;
  for (const auto& unit : *units_) input.frozen.push_back(unit->grads == nullptr);
  input.training = training;
  input.reduce = place.last || policy_.reduce_every_micro_batch;
  input.keep_gathered =
      stays_gathered(policy_.sharding) || (training && !place.last && !gathers_again_in_backward(policy_.sharding));
  for (const auto& unit : *units_) {
    input.already_gathered.push_back(unit->is_gathered);
    input.already_coming.push_back(unit->is_coming);
  }
  return make_schedule(input, policy_);
}

StepSums Engine::forward_backward(const MicroBatch& batch, MicroBatchPosition place, double grad_scale) {
  for (const auto& unit : *units_) {
    if (unit->grads != nullptr) unit->grads->prepare();
  }
  if (graph_cache_ != nullptr) {
    if (const auto loss = graph_cache_->run(batch, place, grad_scale)) return *loss;
  }
  auto rows = batch;
  // A graph computes the logits of all tokens, and the run before its capture does the same work.
  if (graph_cache_ != nullptr && graph_cache_->is_capturable(batch, place, grad_scale)) rows.head_tokens_M.reset();
  Run state{.batch = rows, .place = place, .grad_scale = grad_scale, .training = true};
  return run(plan(true, place), state);
}

StepSums Engine::evaluate(const MicroBatch& batch) {
  Run state{.batch = batch};
  return run(plan(false, {}), state);
}

ForwardEnd Engine::forward(const MicroBatch& batch) {
  const WithoutAutograd guard;
  const auto actions = plan(false, {});
  Run state{.batch = batch};
  begin(state);
  std::vector<Unit*> frees;
  auto action = actions.begin();
  for (; action->kind != ActionKind::loss; ++action) execute(*action, state);
  // Nothing follows the loss of an evaluation but releases.
  for (++action; action != actions.end(); ++action) frees.push_back(&element(*units_, action->index));
  return {std::move(frees), observers_, units_->full(input_.loss->parameters()), state.x_ND};
}

void Engine::begin(Run& state) {
  if (host_inputs_ != nullptr) host_inputs_->clear();
  state.sums = no_sums();
  if (state.batch.joint != nullptr) {
    for (const auto& name : state.batch.joint->sums()) state.sums.named.push_back({name});
  }
  state.inputs.resize(input_.layers.size());
  state.states.resize(input_.layers.size());
}

StepSums Engine::run(const std::vector<Action>& actions, Run& state) {
  const WithoutAutograd guard;
  begin(state);
  for (const auto& action : actions) execute(action, state);
  replica_sums_->drain();
  replica_sums_->drain();  // copies to the host that the first call started
  return state.sums;
}

void Engine::start_reduce(Unit& unit, const Run& state) {
  const bool accumulate = policy_.reduce_every_micro_batch && !state.place.first;
  if (accumulate) unit.held = storage_->hold_gradients(unit, Access::update);
  unit.grads->begin();  // on a rank with an empty batch no layer has called it
  unit.grads->start_reduce(accumulate);
}

void Engine::finish_reduce(Unit& unit, const Run& state) {
  // A reduction that accumulates has held them since start_reduce().
  if (!unit.held) unit.held = storage_->hold_gradients(unit, Access::overwrite);
  const bool to_replicas = state.place.last && input_.mesh->replicate.size() > 1;
  unit.grads->finish_reduce(to_replicas);
  if (input_.mesh->shard.size() > 1) {
    ++counts_.shard.reduce_scatters;
    counts_.shard.bytes += unit.reduce_bytes;
  }
  replica_sums_->drain();
  replica_sums_->start(unit, to_replicas);
  if (!unit.held) return;
  replica_sums_->drain();
  if (state.place.last) storage_->measure_gradients(*units_, unit);
  unit.held.release();
}

std::string Engine::describe(const Action& action) const {
  const auto index = to_index(action.index);
  switch (action.kind) {
    case ActionKind::forward:
      return "forward " + input_.layers[index]->name();
    case ActionKind::recompute:
      return "recompute " + input_.layers[index]->name();
    case ActionKind::backward:
      return "backward " + input_.layers[index]->name();
    case ActionKind::loss:
      return "head and loss";
    case ActionKind::unshard:
    case ActionKind::wait_for_unshard:
      return "gather " + (*units_)[index].name;
    case ActionKind::reshard:
      return "release " + (*units_)[index].name;
    case ActionKind::start_reduce:
    case ActionKind::finish_reduce:
      return "reduce " + (*units_)[index].name;
  }
  return "?";
}

namespace {

std::string_view category_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::recompute:
    case ActionKind::backward:
    case ActionKind::loss:
      return "compute";
    case ActionKind::wait_for_unshard:
    case ActionKind::finish_reduce:
      return "collective";
    case ActionKind::unshard:
    case ActionKind::reshard:
    case ActionKind::start_reduce:
      return "schedule";
  }
  return "schedule";
}

}  // namespace

void Engine::execute(const Action& action, Run& state) {
  const auto index = to_index(action.index);
  const EngineObservers::Scope scope(
      observers_, [&] { return describe(action); }, category_of(action.kind));
  // A rank without rows takes part in the collectives and computes nothing.
  const bool empty = state.batch.rows == 0;
  switch (action.kind) {
    case ActionKind::unshard:
      units_->unshard((*units_)[index], counts_.shard);
      return;
    case ActionKind::wait_for_unshard: {
      auto& unit = (*units_)[index];
      unit.gathered->wait_for_unshard();
      unit.is_gathered = true;
      unit.is_coming = false;
      return;
    }
    case ActionKind::reshard: {
      auto& unit = (*units_)[index];
      unit.gathered->reshard();
      unit.is_gathered = false;
      return;
    }
    case ActionKind::forward:
    case ActionKind::recompute:
      if (!empty) run_forward(index, action.kind == ActionKind::recompute, state);
      return;
    case ActionKind::loss:
      if (!empty) run_loss(state);
      return;
    case ActionKind::backward:
      if (!empty) run_backward(index, state);
      return;
    case ActionKind::start_reduce:
      start_reduce((*units_)[index], state);
      return;
    case ActionKind::finish_reduce:
      finish_reduce((*units_)[index], state);
      return;
  }
}

void Engine::run_forward(std::size_t index, bool again, Run& state) {
  auto& layer = *input_.layers[index];
  const auto params = units_->full(layer.parameters());
  if (again) {
    const auto input = host_inputs_ != nullptr ? host_inputs_->take() : std::exchange(state.inputs[index], {});
    layer.forward(params, state.context_again(), input, &state.states[index]);
    return;
  }
  const bool goes_back = state.training && static_cast<int>(index) >= first_backward_;
  const bool keep = goes_back && !checkpointed_[index];
  const bool recomputed = goes_back && checkpointed_[index];
  if (recomputed && host_inputs_ != nullptr) host_inputs_->keep(state.x_ND);
  if (recomputed && host_inputs_ == nullptr) state.inputs[index] = state.x_ND;
  state.x_ND = layer.forward(params, state.context(), state.x_ND, keep ? &state.states[index] : nullptr);
}

void Engine::run_loss(Run& state) {
  const auto params = units_->full(input_.loss->parameters());
  if (!state.training) {
    input_.loss->forward(params, state.context(), state.x_ND);
    return;
  }
  if (host_inputs_ != nullptr) host_inputs_->fetch();
  const auto slots = units_->grad_slots(input_.loss->parameters());
  const bool goes_on = first_backward_ < static_cast<int>(input_.layers.size());
  input_.loss->forward_backward(params, slots, state.context(), state.x_ND, goes_on ? &state.grad_ND : nullptr);
  state.x_ND.reset();
}

void Engine::run_backward(std::size_t index, Run& state) {
  auto& layer = *input_.layers[index];
  const auto params = units_->full(layer.parameters());
  const auto slots = units_->grad_slots(layer.parameters());
  state.grad_ND = layer.backward(params, slots, state.context(), state.grad_ND, std::move(state.states[index]));
}

GatheredLayer Engine::gathered(std::size_t layer) {
  const WithoutAutograd guard;
  const bool is_loss = layer == input_.layers.size();
  const auto& params = is_loss ? input_.loss->parameters() : input_.layers[layer]->parameters();
  auto& unit = units_->of(to_index(params.front()));
  const bool was_gathered = unit.is_gathered;
  if (!was_gathered) {
    if (!std::exchange(unit.is_coming, false)) units_->unshard(unit, counts_.shard);
    unit.gathered->wait_for_unshard();
  }
  return {unit, units_->full(params), !was_gathered};
}

int Engine::first_backward() const {
  const auto is_trained = [&](const Layer* layer) {
    return std::any_of(layer->parameters().begin(), layer->parameters().end(),
                       [&](int param) { return element(input_.parameters, param).trainable; });
  };
  const auto lowest = std::find_if(input_.layers.begin(), input_.layers.end(), is_trained);
  return static_cast<int>(lowest - input_.layers.begin());
}

HeldShard Engine::shard(std::size_t param, Access access) { return {*storage_, *units_, param, access, unfinished_}; }

ParameterGroups Engine::parameter_groups(UnitPass pass) {
  if (pass != UnitPass::update_and_cast) return storage_->groups(*units_, pass);
  return update_and_gather(*units_, first_gathers_, counts_.shard, observers_);
}

/// Units that the first micro-batch of a step unshards before it computes. At most two, since they also take memory
/// between steps.
std::vector<int> Engine::first_gathers() {
  constexpr std::size_t kMost = 2;
  std::vector<int> units;
  if (units_->uses_peer_memory() || !storage_->stays_in_memory() || input_.mesh->shard.size() == 1) return units;
  // Its master weights may be a part of what the all-gather writes, and are read between steps.
  if (stays_gathered(policy_.sharding)) return units;
  for (const auto& action : plan(true, {})) {
    if (action.kind == ActionKind::forward || action.kind == ActionKind::loss || units.size() == kMost) break;
    if (action.kind == ActionKind::unshard) units.push_back(action.index);
  }
  return units;
}

bool Engine::decides_on_device() const { return input_.ops->decides() && shards_are_on_device(policy_, *storage_); }

at::Tensor Engine::decide_step(StepSums step, double loss_scale, double clip_norm, const at::Tensor& before) {
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(observers_, "gradient norm", "collective");
  const auto here = step.values();
  const auto all = step.on_device(at::TensorOptions().device(input_.ops->device()));
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i] != 0) all.narrow(0, static_cast<std::int64_t>(i), 1).add_(here[i]);
  }
  const std::array sums{input_.ops->device_sum_squares(units_->gradient_parts(all_parameters())), all};
  const auto sum_over = [&](const ProcessGroup& axis, TensorCollectives& ranks) {
    if (axis.size() > 1) ranks.all_reduce(sums)->wait();
  };
  sum_over(*input_.mesh->shard.ranks, *input_.mesh->shard.collectives);
  // Replicas have equal gradients. Their sums are reduced as well, so that all ranks decide by the same bits.
  sum_over(*input_.mesh->replicate.ranks, *input_.mesh->replicate.collectives);
  return input_.ops->decide({sums[0], sums[1], input_.mesh->replicate.size(), loss_scale, clip_norm, before});
}

double Engine::gradient_norm() {
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(observers_, "gradient norm", "collective");
  const double sum = storage_->sum_squares(*units_, all_parameters());
  return std::sqrt(input_.mesh->shard.ranks->all_reduce(sum, Reduce::sum));
}

std::vector<double> Engine::gradient_norms() {
  const WithoutAutograd guard;
  std::vector<double> norms;
  for (const auto param : all_parameters()) norms.push_back(storage_->sum_squares(*units_, {&param, 1}));
  input_.mesh->shard.ranks->all_reduce(norms, Reduce::sum);
  for (auto& norm : norms) norm = std::sqrt(norm);
  return norms;
}

std::vector<std::size_t> Engine::all_parameters() const {
  std::vector<std::size_t> all(num_parameters());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace fsdp
