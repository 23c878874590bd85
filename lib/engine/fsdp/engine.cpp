#include "lib/engine/fsdp/engine.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "lib/engine/fsdp/engine_recordings.hpp"

namespace fsdp {

Engine::Engine(const EngineInput& input, const EnginePolicy& policy) : input_(input), policy_(policy) {
  if (input_.mesh == nullptr || input_.loss == nullptr || input_.ops == nullptr || input_.layers.empty()) {
    throw std::logic_error("an engine needs layers, a loss, a mesh and operations");
  }
  const at::NoGradGuard no_grad;
  // Alone on the shard axis the full gradient is the shard: reducing more often would save nothing.
  if (input_.mesh->shard->size() == 1 && input_.store == nullptr) policy_.reduce_every_micro_batch = false;
  build_units();
  build_gradients();
  int block = 0;
  for (const auto* layer : input_.layers) {
    layer_unit_.push_back(unit_index_[static_cast<std::size_t>(layer->parameters().front())]);
    const bool chosen = layer->is_block() && policy_.checkpoint_every > 0 && block % policy_.checkpoint_every == 0;
    checkpointed_.push_back(chosen);
    if (layer->is_block()) ++block;
  }
  loss_unit_ = unit_index_[static_cast<std::size_t>(input_.loss->parameters().front())];
  first_backward_ = first_backward();
  first_gathers_ = first_gathers();
  // Alone on the shard axis nothing but the sums over replicas crosses ranks, and parameters stay where they are.
  const bool records = policy_.recorded_tokens > 0 && input_.ops->recorder() != nullptr && !peer_memory_ &&
                       input_.mesh->shard->size() == 1 && input_.store == nullptr && !policy_.cpu_offload;
  if (records) recordings_ = std::make_unique<Recordings>(*this);
}

RecordingCounts Engine::recording_counts() const {
  return recordings_ == nullptr ? RecordingCounts() : recordings_->counts();
}

/// Transfers read and write what is about to be freed. Ranks of which one has failed do not wait for each other.
Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    release_coming();
  } catch (const std::exception&) {
    // A peer is gone: nobody is left to tell.
  }
}

void Engine::release_coming() {
  for (auto& unit : units_) {
    if (!std::exchange(unit->is_coming, false)) continue;
    unit->gathered->wait_for_unshard();
    unit->gathered->reshard();
  }
}

Engine::Unit& Engine::unit_of(int param) {
  return *units_[static_cast<std::size_t>(unit_index_[static_cast<std::size_t>(param)])];
}

ShardRange Engine::range(std::size_t param) const {
  return shard_range(input_.parameters[param].rows(), input_.mesh->shard->size(), input_.mesh->shard->rank());
}

at::Tensor Engine::published_rows(std::size_t param) {
  auto& unit = unit_of(static_cast<int>(param));
  const auto place = static_cast<std::size_t>(slot_index_[param]);
  const auto own = unit.gathered->own_rows(place);
  return own.is_same(unit.master_weights[place].get()) ? at::Tensor() : own;
}

void Engine::sync_parameters() {
  const at::NoGradGuard no_grad;
  const EngineObservers::Scope scope(observers_, "publish parameters", "schedule");
  // Training begins with the memory that a prediction begins with, whatever was loaded in which order.
  if (std::exchange(rows_changed_, false)) input_.store->settle();
  release_coming();  // with what the rows were before
  for (auto& unit : units_) {
    publish(*unit);
    unit->gathered->begin_sync();
  }
  for (auto& unit : units_) unit->gathered->finish_sync();
}

void Engine::publish(Unit& unit) {
  const EngineObservers::Scope unit_scope(
      observers_, [&] { return "publish " + unit.name; }, "optimizer");
  std::vector<PublishedRows> rows;
  for (std::size_t i = 0; i < unit.master_weights.size(); ++i) {
    if (unit.master_weights[i].store() != nullptr) continue;  // they were when they were changed
    const PublishedRows pair{unit.gathered->own_rows(i), unit.master_weights[i].get()};
    if (!pair.to.is_same(pair.from)) rows.push_back(pair);
  }
  input_.ops->publish(rows);
}

std::vector<at::Tensor> Engine::full_parameters(const std::vector<int>& params) {
  std::vector<at::Tensor> full;
  full.reserve(params.size());
  for (const int param : params) {
    full.push_back(
        unit_of(param).gathered->full(static_cast<std::size_t>(slot_index_[static_cast<std::size_t>(param)])));
  }
  return full;
}

std::vector<GradSlot*> Engine::grad_slots(const std::vector<int>& params) {
  std::vector<GradSlot*> slots;
  for (const int param : params) {
    auto& unit = unit_of(param);
    const int place = unit.trained[static_cast<std::size_t>(slot_index_[static_cast<std::size_t>(param)])];
    if (place >= 0) {
      progress_.changed = true;
      unit.grads->begin();
    }
    slots.push_back(place < 0 ? nullptr : &unit.grads->slots()[static_cast<std::size_t>(place)]);
  }
  return slots;
}

std::vector<Action> Engine::plan(bool training, MicroBatchPlace place) {
  ScheduleInput input;
  input.layer_unit = layer_unit_;
  input.checkpointed = checkpointed_;
  input.loss_unit = loss_unit_;
  input.first_backward = first_backward_;
  for (const auto& unit : units_) input.frozen.push_back(unit->grads == nullptr);
  input.training = training;
  input.reduce = place.last || policy_.reduce_every_micro_batch;
  input.keep_gathered = training && !place.last && !gathers_again_in_backward(policy_.sharding);
  for (const auto& unit : units_) {
    input.already_gathered.push_back(unit->is_gathered);
    input.already_coming.push_back(unit->is_coming);
  }
  return make_schedule(input, policy_);
}

LossSum Engine::forward_backward(const MicroBatch& batch, MicroBatchPlace place, double grad_scale) {
  for (auto& unit : units_) {
    if (unit->grads != nullptr) unit->grads->prepare();
  }
  return with_room(place.first ? Redo::micro_batch : Redo::step, [&] {
    if (recordings_ != nullptr) {
      if (const auto loss = recordings_->run(batch, place, grad_scale)) return *loss;
    }
    Run state{batch, place, grad_scale, true, {}, {}, {}, {}, {}};
    return run(plan(true, place), state);
  });
}

LossSum Engine::evaluate(const MicroBatch& batch) {
  return with_room(Redo::nothing, [&] {
    Run state{batch, {}, 0.0, false, {}, {}, {}, {}, {}};
    return run(plan(false, {}), state);
  });
}

LossSum Engine::evaluate(const MicroBatch& batch, const HeadBody& head) {
  return with_room(Redo::nothing, [&] {
    Run state{batch, {}, 0.0, false, {}, {}, {}, {}, {}, &head};
    return run(plan(false, {}), state);
  });
}

LossSum Engine::with_room(Redo redo, const std::function<LossSum()>& micro_batch) {
  return recordings_ == nullptr ? micro_batch() : recordings_->with_room(redo, micro_batch);
}

LossSum Engine::run(const std::vector<Action>& actions, Run& state) {
  const at::NoGradGuard no_grad;
  state.inputs.resize(input_.layers.size());
  state.states.resize(input_.layers.size());
  for (const auto& action : actions) execute(action, state);
  settle();
  settle();  // what the first has sent
  return state.loss;
}

void Engine::unshard(Unit& unit) {
  if (input_.mesh->shard->size() > 1) {
    ++counts_.shard.all_gathers;
    counts_.shard.bytes += unit.gather_bytes;
  }
  unit.gathered->unshard();
}

bool Engine::accumulates(const Run& state) const { return policy_.reduce_every_micro_batch && !state.place.first; }

void Engine::finish_reduce(Unit& unit, const Run& state) {
  // One that adds to what was there has been held since it began.
  if (unit.grad_group && !unit.held) unit.held.emplace(*input_.store, *unit.grad_group, Access::overwrite);
  const bool to_replicas = state.place.last && input_.mesh->replicate->size() > 1;
  unit.grads->finish_reduce(to_replicas);
  if (input_.mesh->shard->size() > 1) {
    ++counts_.shard.reduce_scatters;
    counts_.shard.bytes += unit.reduce_bytes;
  }
  settle();
  settling_ = &unit;
  if (to_replicas) {
    progress_.crossed = true;
    start_replicas(unit);
  }
  if (unit.held) {
    settle();
    if (state.place.last) measure_stored(unit);
  }
  unit.held.reset();
}

std::string Engine::describe(const Action& action) const {
  const auto index = static_cast<std::size_t>(action.index);
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
      return "gather " + units_[index]->name;
    case ActionKind::reshard:
      return "release " + units_[index]->name;
    case ActionKind::start_reduce:
    case ActionKind::finish_reduce:
      return "reduce " + units_[index]->name;
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
  const auto index = static_cast<std::size_t>(action.index);
  const EngineObservers::Scope scope(
      observers_, [&] { return describe(action); }, category_of(action.kind));
  // A rank without rows takes part in the collectives and computes nothing.
  const bool empty = state.batch.rows == 0;
  switch (action.kind) {
    case ActionKind::unshard:
      unshard(*units_[index]);
      return;
    case ActionKind::wait_for_unshard: {
      units_[index]->gathered->wait_for_unshard();
      units_[index]->is_gathered = true;
      units_[index]->is_coming = false;
      return;
    }
    case ActionKind::reshard: {
      units_[index]->gathered->reshard();
      units_[index]->is_gathered = false;
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
    case ActionKind::start_reduce: {
      auto& unit = *units_[index];
      const bool accumulate = accumulates(state);
      if (accumulate && unit.grad_group) unit.held.emplace(*input_.store, *unit.grad_group, Access::update);
      progress_.changed = true;
      unit.grads->begin();  // for ranks that wrote nothing
      unit.grads->start_reduce(accumulate);
      return;
    }
    case ActionKind::finish_reduce: {
      finish_reduce(*units_[index], state);
      return;
    }
  }
}

void Engine::run_forward(std::size_t index, bool again, Run& state) {
  auto& layer = *input_.layers[index];
  const auto params = full_parameters(layer.parameters());
  if (again) {
    layer.forward(params, state.batch, state.inputs[index], &state.states[index]);
    state.inputs[index].reset();
    return;
  }
  const bool goes_back = state.training && static_cast<int>(index) >= first_backward_;
  const bool keep = goes_back && !checkpointed_[index];
  if (goes_back && checkpointed_[index]) state.inputs[index] = state.x_ND;
  state.x_ND = layer.forward(params, state.batch, state.x_ND, keep ? &state.states[index] : nullptr);
}

void Engine::run_loss(Run& state) {
  const auto params = full_parameters(input_.loss->parameters());
  if (!state.training) {
    progress_.changed = state.head != nullptr;
    state.loss = state.head != nullptr ? (*state.head)(params, state.x_ND)
                                       : input_.loss->forward(params, state.batch, state.x_ND);
    return;
  }
  const auto slots = grad_slots(input_.loss->parameters());
  const bool goes_on = first_backward_ < static_cast<int>(input_.layers.size());
  state.loss = input_.loss->forward_backward(params, slots, state.batch, state.x_ND, state.grad_scale,
                                             goes_on ? &state.grad_ND : nullptr);
  state.x_ND.reset();
}

void Engine::run_backward(std::size_t index, Run& state) {
  auto& layer = *input_.layers[index];
  const auto params = full_parameters(layer.parameters());
  const auto slots = grad_slots(layer.parameters());
  state.grad_ND = layer.backward(params, slots, state.batch, state.grad_ND, std::move(state.states[index]));
}

void Engine::with_layer_parameters(std::size_t layer, const std::function<void(LayerParams)>& body) {
  const at::NoGradGuard no_grad;
  const bool is_loss = layer == input_.layers.size();
  const auto& params = is_loss ? input_.loss->parameters() : input_.layers[layer]->parameters();
  auto& unit = unit_of(params.front());
  const bool was_gathered = unit.is_gathered;
  if (!was_gathered) {
    if (!std::exchange(unit.is_coming, false)) unshard(unit);
    unit.gathered->wait_for_unshard();
  }
  body(full_parameters(params));
  if (!was_gathered) unit.gathered->reshard();
}

}  // namespace fsdp
