// Long because a class is one file.
#include "lib/engine/fsdp/engine.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/engine/fsdp/engine_internal.hpp"
#include "lib/engine/fsdp/shard_layout.hpp"

namespace fsdp {

Engine::Engine(const EngineInput& input, const EnginePolicy& policy) : input_(input), policy_(policy) {
  if (input_.mesh == nullptr || input_.loss == nullptr || input_.ops == nullptr || input_.layers.empty()) {
    throw std::logic_error("an engine needs layers, a loss, a mesh and operations");
  }
  const WithoutAutograd guard;
  // Alone on the shard axis the full gradient is the shard: reducing more often would save nothing.
  if (input_.mesh->shard.size() == 1 && input_.store == nullptr) policy_.reduce_every_micro_batch = false;
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
  const auto add_names = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      if (std::find(sum_names_.begin(), sum_names_.end(), name) == sum_names_.end()) sum_names_.push_back(name);
    }
  };
  for (const auto* layer : input_.layers) add_names(layer->sums());
  add_names(input_.loss->sums());
  // On a shard axis of one rank only reductions over replicas cross ranks, and parameters keep their addresses, as
  // graphs require.
  const bool records = policy_.graph_max_tokens > 0 && input_.ops->recorder() != nullptr && !peer_memory_ &&
                       input_.mesh->shard.size() == 1 && input_.store == nullptr && !policy_.cpu_offload;
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
    release_coming();
  } catch (const std::exception&) {
    // A peer has died; a destructor has no way to report it.
  }
}

/// Makes the next micro-batch gather units again that stay gathered, because their shards change.
void Engine::forget_gathered() {
  for (auto& unit : units_) unit->is_gathered = false;
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
  return shard_range(input_.parameters[param].rows(), input_.mesh->shard.size(), input_.mesh->shard.rank());
}

at::Tensor Engine::all_gather_input(std::size_t param) {
  auto& unit = unit_of(static_cast<int>(param));
  const auto place = static_cast<std::size_t>(slot_index_[param]);
  const auto own = unit.gathered->local_shard(place).get();
  return own.is_same(unit.master_weights[place].get()) ? at::Tensor() : own;
}

void Engine::sync_parameters() {
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(observers_, "publish parameters", "schedule");
  // Empty the store's memory, so that training starts with the memory use that predictions assume, however it was
  // loaded.
  if (std::exchange(shards_changed_, false)) input_.store->flush();
  release_coming();  // it was gathered from the old shards
  forget_gathered();
  for (auto& unit : units_) {
    cast_master_weights(*unit);
    unit->gathered->begin_sync();
  }
  for (auto& unit : units_) unit->gathered->finish_sync();
}

void Engine::cast_master_weights(Unit& unit) {
  const EngineObservers::Scope unit_scope(
      observers_, [&] { return "publish " + unit.name; }, "optimizer");
  std::vector<CastShard> rows;
  for (std::size_t i = 0; i < unit.master_weights.size(); ++i) {
    if (unit.master_weights[i].store() != nullptr) continue;  // with_shard() and for_units() cast them
    const CastShard pair{unit.gathered->local_shard(i).get(), unit.master_weights[i].get()};
    if (!pair.to.is_same(pair.from)) rows.push_back(pair);
  }
  input_.ops->cast_shards(rows);
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
      unit.grads->begin();
    }
    slots.push_back(place < 0 ? nullptr : &unit.grads->slots()[static_cast<std::size_t>(place)]);
  }
  return slots;
}

std::vector<Action> Engine::plan(bool training, MicroBatchPosition place) {
  ScheduleInput input;
  input.layer_unit = layer_unit_;
  input.checkpointed = checkpointed_;
  input.loss_unit = loss_unit_;
  input.first_backward = first_backward_;
  for (const auto& unit : units_) input.frozen.push_back(unit->grads == nullptr);
  input.training = training;
  input.reduce = place.last || policy_.reduce_every_micro_batch;
  input.keep_gathered =
      stays_gathered(policy_.sharding) || (training && !place.last && !gathers_again_in_backward(policy_.sharding));
  for (const auto& unit : units_) {
    input.already_gathered.push_back(unit->is_gathered);
    input.already_coming.push_back(unit->is_coming);
  }
  return make_schedule(input, policy_);
}

StepSums Engine::forward_backward(const MicroBatch& batch, MicroBatchPosition place, double grad_scale) {
  for (auto& unit : units_) {
    if (unit->grads != nullptr) unit->grads->prepare();
  }
  if (graph_cache_ != nullptr) {
    if (const auto loss = graph_cache_->run(batch, place, grad_scale)) return *loss;
  }
  Run state{.batch = batch, .place = place, .grad_scale = grad_scale, .training = true};
  return run(plan(true, place), state);
}

StepSums Engine::evaluate(const MicroBatch& batch) {
  Run state{.batch = batch};
  return run(plan(false, {}), state);
}

StepSums Engine::evaluate(const MicroBatch& batch, const HeadBody& head) {
  Run state{.batch = batch, .head = &head};
  return run(plan(false, {}), state);
}

StepSums Engine::run(const std::vector<Action>& actions, Run& state) {
  const WithoutAutograd guard;
  if (host_inputs_ != nullptr) host_inputs_->clear();
  state.sums = no_sums();
  state.inputs.resize(input_.layers.size());
  state.states.resize(input_.layers.size());
  for (const auto& action : actions) execute(action, state);
  drain_reduction();
  drain_reduction();  // copies to the host that the first call started
  return state.sums;
}

void Engine::unshard(Unit& unit) {
  if (input_.mesh->shard.size() > 1) {
    ++counts_.shard.all_gathers;
    counts_.shard.bytes += unit.gather_bytes;
  }
  unit.gathered->unshard();
  if (!unit.param_group) return;
  const auto next = static_cast<std::size_t>(unit.index + (unit.index >= last_unshard_ ? 1 : -1));
  last_unshard_ = unit.index;
  if (next < units_.size() && units_[next]->param_group) input_.store->read_ahead(*units_[next]->param_group);
}

bool Engine::accumulates(const Run& state) const { return policy_.reduce_every_micro_batch && !state.place.first; }

void Engine::finish_reduce(Unit& unit, const Run& state) {
  // A reduction that accumulates has held its group since start_reduce.
  if (unit.grad_group && !unit.held) unit.held.emplace(*input_.store, *unit.grad_group, Access::overwrite);
  const bool to_replicas = state.place.last && input_.mesh->replicate.size() > 1;
  unit.grads->finish_reduce(to_replicas);
  if (input_.mesh->shard.size() > 1) {
    ++counts_.shard.reduce_scatters;
    counts_.shard.bytes += unit.reduce_bytes;
  }
  drain_reduction();
  draining_ = &unit;
  if (to_replicas) start_replicas(unit);
  if (unit.held) {
    drain_reduction();
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
      unit.grads->begin();  // on a rank with an empty batch no layer has called it
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
  const auto params = full_parameters(input_.loss->parameters());
  if (!state.training) {
    if (state.head != nullptr) {
      state.sums += (*state.head)(params, state.x_ND);
    } else {
      input_.loss->forward(params, state.context(), state.x_ND);
    }
    return;
  }
  if (host_inputs_ != nullptr) host_inputs_->fetch();
  const auto slots = grad_slots(input_.loss->parameters());
  const bool goes_on = first_backward_ < static_cast<int>(input_.layers.size());
  input_.loss->forward_backward(params, slots, state.context(), state.x_ND, goes_on ? &state.grad_ND : nullptr);
  state.x_ND.reset();
}

void Engine::run_backward(std::size_t index, Run& state) {
  auto& layer = *input_.layers[index];
  const auto params = full_parameters(layer.parameters());
  const auto slots = grad_slots(layer.parameters());
  state.grad_ND = layer.backward(params, slots, state.context(), state.grad_ND, std::move(state.states[index]));
}

void Engine::with_layer_parameters(std::size_t layer, const std::function<void(LayerParams)>& body) {
  const WithoutAutograd guard;
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

// --- building: units, master weights and gradients

void Engine::build_units() {
  const MemoryScope scope(MemoryCategory::parameters);
  auto& shard = *input_.mesh->shard.ranks;
  const double mine = input_.ops->on_host() && input_.allow_peer_memory ? 1.0 : 0.0;
  peer_memory_ = false;
  if (shard.all_reduce(mine, Reduce::min) > 0) peer_memory_ = shard.peer_memory(4096, 1) != nullptr;
  unit_index_.resize(input_.parameters.size());
  slot_index_.resize(input_.parameters.size());
  const auto dtype = policy_.precision.param_dtype;
  const UnitContext context{.shard_group = shard,
                            .collectives = *input_.mesh->shard.collectives,
                            .ops = *input_.ops,
                            .use_peer_memory = peer_memory_,
                            .stays_gathered = stays_gathered(policy_.sharding),
                            .offload_frozen = policy_.offload_frozen && !input_.ops->on_host(),
                            .wide_weights = policy_.wide_weights && input_.ops->on_host(),
                            .store = input_.store};
  for (std::size_t u = 0; u < input_.units.size(); ++u) {
    auto unit = std::make_unique<Unit>();
    unit->index = static_cast<int>(u);
    unit->name = "unit " + std::to_string(u);
    unit->params = input_.units[u];
    for (std::size_t i = 0; i < unit->params.size(); ++i) {
      const auto param = static_cast<std::size_t>(unit->params[i]);
      unit_index_[param] = static_cast<int>(u);
      slot_index_[param] = static_cast<int>(i);
      unit->layouts.push_back(input_.parameters[param]);
    }
    auto its = context;
    if (policy_.offload_parameters && input_.store != nullptr && !peer_memory_)
      its.stored_params = store_parameters(*unit);
    unit->gathered = make_unit_params(its, unit->layouts, dtype, unit->name);
    for (std::size_t i = 0; i < unit->params.size(); ++i) add_parameter(*unit, i);
    units_.push_back(std::move(unit));
  }
}

void Engine::add_parameter(Unit& unit, std::size_t place) {
  const auto& layout = unit.layouts[place];
  const auto& precision = policy_.precision;
  const auto dtype = detail::type_of(layout, precision.param_dtype);
  const auto master_dtype = detail::type_of(layout, precision.master_dtype);
  const auto own = unit.gathered->local_shard(place);
  const bool same = dtype == master_dtype && (!policy_.cpu_offload || input_.ops->on_host());
  // The gathered shard is the master weight if the dtypes are equal or the parameter is frozen. Otherwise master
  // weights are separate and cast_master_weights() casts them.
  const auto device = policy_.cpu_offload ? input_.ops->host() : input_.ops->device();
  if (!layout.trainable || (same && input_.store == nullptr)) {
    unit.master_weights.emplace_back(own.get());
  } else if (input_.store != nullptr) {
    unit.master_weights.push_back(store_master_weight(unit, place, own.sizes().vec()));
  } else {
    const MemoryScope host_scope(MemoryCategory::parameters, policy_.cpu_offload);
    unit.master_weights.emplace_back(at::zeros(own.sizes(), at::TensorOptions(master_dtype).device(device)));
  }
  const auto elements = c10::multiply_integers(own.sizes());
  const auto others = elements * (input_.mesh->shard.size() - 1);
  unit.gather_bytes += others * static_cast<std::int64_t>(c10::elementSize(unit.gathered->gathered_type(place)));
  unit.trained.push_back(layout.trainable ? static_cast<int>(unit.grad_layouts.size()) : -1);
  if (!layout.trainable) return;
  unit.grad_layouts.push_back(layout);
  unit.reduce_bytes +=
      others * static_cast<std::int64_t>(c10::elementSize(detail::type_of(layout, precision.reduce_dtype)));
  unit.shard_elements += elements;
}

void Engine::build_gradients() {
  auto& shard = *input_.mesh->shard.ranks;
  const UnitContext context{.shard_group = shard,
                            .collectives = *input_.mesh->shard.collectives,
                            .ops = *input_.ops,
                            .use_peer_memory = peer_memory_};
  // Accumulation over many micro-batches in 16 bits would lose digits.
  const bool accumulate_locally = input_.step.micro_batches > 1 && !policy_.reduce_every_micro_batch;
  const auto travels_as = [&](const Unit& unit) {
    const bool any_float = std::any_of(unit.grad_layouts.begin(), unit.grad_layouts.end(),
                                       [](const ParamLayout& layout) { return layout.is_float; });
    return accumulate_locally || any_float ? at::kFloat : policy_.precision.reduce_dtype;
  };
  // NCCL and the host sum bf16 in one rounding; fp16 would overflow sooner than one rank's gradients do.
  for (auto& unit : units_) {
    if (travels_as(*unit) == at::kBFloat16) unit->wire_dtype = at::kBFloat16;
  }
  // One micro-batch's gradients stay as they travel until the update, where that reads them.
  const bool reads_bf16 = input_.step.takes_bf16 && input_.step.micro_batches == 1 && decides_on_device() &&
                          policy_.precision.param_dtype == at::kBFloat16;
  const auto shard_type_of = [&](const Unit& unit) {
    return reads_bf16 && travels_as(unit) == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  };
  // Without a reduce-scatter a GPU writes gradients to their final place: GEMMs round once into either dtype.
  const bool stays = shard.size() == 1 && !input_.ops->on_host();
  const auto type_of = [&](const Unit& unit) { return stays ? shard_type_of(unit) : travels_as(unit); };
  const auto context_of = [&](Unit& unit) {
    auto its = context;
    if (input_.store != nullptr) its.stored_grads = store_gradients(unit);
    return its;
  };
  if (!peer_memory_) {
    for (auto& unit : units_) {
      if (unit->grad_layouts.empty()) continue;
      unit->grads =
          make_collective_unit_grads(context_of(*unit), unit->grad_layouts, type_of(*unit), shard_type_of(*unit),
                                     policy_.cpu_offload, policy_.reduce_every_micro_batch);
    }
    return;
  }
  // Slot 0 belongs to the root; blocks share slots 1 and 2. With local accumulation each unit has its own slot, and on
  // a shard axis of one rank, too: there the full gradient is the shard, unless the shard is in a store.
  const bool own_slots = accumulate_locally || (shard.size() == 1 && input_.store == nullptr);
  std::vector<std::size_t> slot_bytes;
  std::size_t largest = 0;
  for (const auto& unit : units_) {
    const auto bytes = grad_slot_bytes(unit->grad_layouts, type_of(*unit), shard.size());
    if (own_slots || unit->index == 0) slot_bytes.push_back(bytes);
    if (unit->index != 0) largest = std::max(largest, bytes);
  }
  if (!own_slots) slot_bytes.insert(slot_bytes.end(), 2, largest);
  const auto memory = std::make_shared<GradMemory>(shard, *input_.ops, slot_bytes);
  const auto next = std::make_shared<std::size_t>(0);
  for (auto& unit : units_) {
    if (unit->grad_layouts.empty()) continue;
    const std::vector<int> slots =
        own_slots || unit->index == 0 ? std::vector<int>{own_slots ? unit->index : 0} : std::vector<int>{1, 2};
    unit->grads = make_shared_unit_grads(context_of(*unit), unit->grad_layouts, type_of(*unit), memory, slots, next);
  }
}

int Engine::first_backward() const {
  const auto is_trained = [&](const Layer* layer) {
    return std::any_of(layer->parameters().begin(), layer->parameters().end(),
                       [&](int param) { return input_.parameters[static_cast<std::size_t>(param)].trainable; });
  };
  const auto lowest = std::find_if(input_.layers.begin(), input_.layers.end(), is_trained);
  return static_cast<int>(lowest - input_.layers.begin());
}

// --- this rank's rows of master weights and gradients, in memory or in a store
namespace {

/// Bytes per element of a master weight and two optimizer states in float32.
constexpr std::int64_t kElementBytes = 12;

}  // namespace

StoredTensor Engine::store_master_weight(Unit& unit, std::size_t place, at::IntArrayRef sizes) {
  const auto elements = c10::multiply_integers(sizes);
  auto& groups = unit.step_groups;
  if (groups.empty() || (groups.back().elements + elements) * kElementBytes > input_.store->group_bytes())
    groups.push_back({.group = input_.store->add_group(MemoryCategory::optimizer, true)});
  groups.back().places.push_back(place);
  groups.back().elements += elements;
  const auto dtype = detail::type_of(unit.layouts[place], policy_.precision.master_dtype);
  return {*input_.store, input_.store->add(groups.back().group, sizes, dtype)};
}

std::vector<StoredTensor> Engine::store_gradients(Unit& unit) {
  unit.grad_group = input_.store->add_group(MemoryCategory::gradients, false);
  std::vector<StoredTensor> shards;
  for (const auto& layout : unit.grad_layouts) {
    const auto& group = *input_.mesh->shard.ranks;
    const auto rows = shard_range(layout.rows(), group.size(), group.rank()).padded_rows;
    shards.emplace_back(*input_.store, input_.store->add(*unit.grad_group, layout.shape_with_rows(rows), at::kFloat));
  }
  return shards;
}

std::vector<StoredTensor> Engine::store_parameters(Unit& unit) {
  std::vector<StoredTensor> shards(unit.layouts.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& layout = unit.layouts[i];
    if (!layout.trainable) continue;
    if (!unit.param_group) unit.param_group = input_.store->add_group(MemoryCategory::parameters, false);
    const auto sizes = layout.shape_with_rows(range(static_cast<std::size_t>(unit.params[i])).padded_rows);
    const auto dtype = detail::type_of(layout, policy_.precision.param_dtype);
    shards[i] = {*input_.store, input_.store->add(*unit.param_group, sizes, dtype)};
  }
  return shards;
}

std::optional<StoreHold> Engine::hold_parameters(const Unit& unit, Access access) {
  if (!unit.param_group) return std::nullopt;
  return std::optional<StoreHold>(std::in_place, *input_.store, *unit.param_group, access);
}

const StoredTensor& Engine::stored_master_weight(std::size_t param) {
  return unit_of(static_cast<int>(param)).master_weights[static_cast<std::size_t>(slot_index_[param])];
}

at::Tensor Engine::gradient(std::size_t param) {
  auto& unit = unit_of(static_cast<int>(param));
  const int place = unit.trained[static_cast<std::size_t>(slot_index_[param])];
  if (place < 0 || (unit.grad_group && !input_.store->is_held(*unit.grad_group))) return {};
  unit.grads->prepare();
  return unit.grads->shard(static_cast<std::size_t>(place));
}

std::optional<StoreHold> Engine::hold_gradients(const Unit& unit) {
  if (!unit.grad_group) return std::nullopt;
  return std::optional<StoreHold>(std::in_place, *input_.store, *unit.grad_group, Access::read);
}

/// Measures the norm of stored gradients while they are in memory, and zeroes their padding.
void Engine::measure_stored(Unit& unit) {
  grad_squares_.resize(num_parameters(), 0.0);
  for (const int index : unit.params) {
    const auto param = static_cast<std::size_t>(index);
    const auto grad = gradient(param);
    if (!grad.defined()) continue;
    const auto rows = range(param).num_rows;
    grad.narrow(0, rows, grad.size(0) - rows).zero_();
    const GradPart part{grad, rows * layout(param).row_elements()};
    grad_squares_[param] = part.elements > 0 ? input_.ops->sum_squares({&part, 1}) : 0.0;
  }
}

double Engine::sum_squares(std::size_t param) {
  if (input_.store != nullptr) return param < grad_squares_.size() ? grad_squares_[param] : 0.0;
  const GradPart part{gradient(param), range(param).num_rows * layout(param).row_elements()};
  return part.grad.defined() && part.elements > 0 ? input_.ops->sum_squares({&part, 1}) : 0.0;
}

void Engine::cast_master_weights(Unit& unit, std::size_t place) {
  const auto held = hold_parameters(unit, Access::update);
  const auto own = unit.gathered->local_shard(place).get();
  const auto master_weight = unit.master_weights[place].get();
  if (!own.is_same(master_weight)) own.copy_(master_weight);
}

void Engine::with_shard(std::size_t param, Access access, const std::function<void()>& body) {
  auto& unit = unit_of(static_cast<int>(param));
  const auto place = static_cast<std::size_t>(slot_index_[param]);
  const auto& master_weight = unit.master_weights[place];
  if (master_weight.store() == nullptr) {
    body();
    return;
  }
  // A group also holds other parameters, so it must be read even if body overwrites this one.
  const StoreHold held(*input_.store, master_weight.place().group,
                       access == Access::overwrite ? Access::update : access);
  body();
  if (access == Access::read) return;
  cast_master_weights(unit, place);
  shards_changed_ = true;
}

void Engine::for_units(UnitPass pass, const std::function<void(const std::vector<std::size_t>& params)>& body) {
  if (pass == UnitPass::update_and_cast) return update_and_gather(body);
  if (input_.store == nullptr) {
    std::vector<std::size_t> params(num_parameters());
    std::iota(params.begin(), params.end(), 0);
    return body(params);
  }
  if (pass == UnitPass::update) return update_stored(body);
  for (const auto& unit : units_) {
    const auto held = hold_gradients(*unit);
    if (held) body({unit->params.begin(), unit->params.end()});
  }
}

/// Units that the first micro-batch of a step unshards before it computes. At most two, since they also take memory
/// between steps.
std::vector<int> Engine::first_gathers() {
  constexpr std::size_t kMost = 2;
  std::vector<int> units;
  if (peer_memory_ || input_.store != nullptr || input_.mesh->shard.size() == 1) return units;
  // Its master weights may be a part of what the all-gather writes, and are read between steps.
  if (stays_gathered(policy_.sharding)) return units;
  for (const auto& action : plan(true, {})) {
    if (action.kind == ActionKind::forward || action.kind == ActionKind::loss || units.size() == kMost) break;
    if (action.kind == ActionKind::unshard) units.push_back(action.index);
  }
  return units;
}

void Engine::update_and_gather(const std::function<void(const std::vector<std::size_t>& params)>& body) {
  const WithoutAutograd guard;
  forget_gathered();
  std::vector<std::size_t> others;
  for (const auto& unit : units_) {
    if (std::find(first_gathers_.begin(), first_gathers_.end(), unit->index) == first_gathers_.end())
      others.insert(others.end(), unit->params.begin(), unit->params.end());
  }
  std::sort(others.begin(), others.end());
  const auto gather = [&](Unit& unit) {
    const EngineObservers::Scope scope(
        observers_, [&] { return "gather " + unit.name; }, "schedule");
    unit.gathered->finish_sync();
    unshard(unit);
    unit.is_coming = true;
  };
  // If ranks must agree on scales first, send all of those messages before the first all-gather, behind which they
  // would wait.
  const bool agree =
      std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->gathered->sync_asks_ranks(); });
  for (const int index : first_gathers_) {
    auto& unit = *units_[static_cast<std::size_t>(index)];
    {
      const EngineObservers::Scope scope(
          observers_, [&] { return "update " + unit.name; }, "optimizer");
      body({unit.params.begin(), unit.params.end()});
      unit.gathered->begin_sync();
    }
    if (!agree) gather(unit);
  }
  for (const int index : first_gathers_) {
    if (agree) gather(*units_[static_cast<std::size_t>(index)]);
  }
  const EngineObservers::Scope scope(observers_, "update the other units", "optimizer");
  body(others);
  for (auto& unit : units_) {
    if (!unit->is_coming) unit->gathered->begin_sync();
  }
  for (auto& unit : units_) {
    if (!unit->is_coming) unit->gathered->finish_sync();
  }
}

void Engine::update_stored(const std::function<void(const std::vector<std::size_t>& params)>& body) {
  auto& store = *input_.store;
  std::vector<std::size_t> order;
  for (const auto& unit : units_) {
    if (!unit->grad_group) continue;
    order.push_back(*unit->grad_group);
    for (const auto& part : unit->step_groups) order.push_back(part.group);
  }
  std::size_t next = 0;  // index in order of the first group that is not in use
  for (auto& unit : units_) {
    const auto held = hold_gradients(*unit);
    const auto rows_held = hold_parameters(*unit, Access::overwrite);
    if (held) ++next;
    for (const auto& part : unit->step_groups) {
      const StoreHold rows(store, part.group, Access::update);
      ++next;
      // Read ahead the next gradients and the optimizer states that follow them.
      for (auto ahead = next; ahead < std::min(order.size(), next + 2) && store.read_ahead(order[ahead]); ++ahead) {
      }
      std::vector<std::size_t> params;
      for (const auto place : part.places) params.push_back(static_cast<std::size_t>(unit->params[place]));
      body(params);
      for (const auto place : part.places) cast_master_weights(*unit, place);
    }
  }
}

// --- sums of gradients over replicas, gradient norms, and the decision about a step

void Engine::start_replicas(Unit& unit) {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  std::vector<CastShard> casts;
  for (std::size_t i = 0; i < unit.grad_layouts.size(); ++i) {
    // Gradients in a store are copied to the device first.
    const auto sum = input_.ops->to_device(unit.grads->device_sum(i));
    const bool same = sum.scalar_type() == unit.wire_dtype;
    unit.replica_sums.push_back(same ? sum : at::empty(sum.sizes(), sum.options().dtype(unit.wire_dtype)));
    if (!same) casts.push_back({unit.replica_sums.back(), sum});
    // Cast all in one launch; with a store cast each at once, so that its copy can be freed.
    const bool is_last = i + 1 == unit.grad_layouts.size();
    if (is_last || input_.store != nullptr) input_.ops->cast_shards(std::exchange(casts, {}));
  }
  unit.replica_work = input_.mesh->replicate.collectives->all_reduce(unit.replica_sums);
  ++counts_.replicate.all_reduces;
  counts_.replicate.bytes += unit.shard_elements * static_cast<std::int64_t>(c10::elementSize(unit.wire_dtype));
}

/// Waits for the reduction over replicas and the copies to the host of the previous unit. The call comes one unit late,
/// so that they overlap with the backward of the next unit.
void Engine::drain_reduction() {
  for (const auto& transfer : host_transfers_) transfer->wait();
  host_transfers_.clear();
  if (draining_ == nullptr) return;
  auto& unit = *std::exchange(draining_, nullptr);
  if (unit.replica_work != nullptr) finish_replicas(unit);
  unit.grads->wait_for_transfers();
}

void Engine::finish_replicas(Unit& unit) {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  unit.replica_work->wait();
  unit.replica_work.reset();
  std::vector<UpcastSum> upcasts;
  for (std::size_t i = 0; i < unit.grad_layouts.size(); ++i) {
    const auto shard = unit.grads->shard(i);
    const auto& sum = unit.replica_sums[i];
    if (shard.is_same(sum)) continue;
    // Cast before the copy: a copy between dtypes blocks the host, for ever if a peer has died.
    if (!policy_.cpu_offload || input_.ops->on_host()) {
      upcasts.push_back({shard, sum});
    } else if (input_.store != nullptr) {
      input_.ops->transfer(shard, sum.to(at::kFloat));
    } else if (auto transfer = input_.ops->start_transfer(shard, sum.to(at::kFloat))) {
      host_transfers_.push_back(std::move(transfer));
    }
  }
  input_.ops->upcast_sums(upcasts);
  unit.replica_sums.clear();
}

std::vector<GradPart> Engine::gradient_parts() {
  std::vector<GradPart> parts;
  for (std::size_t param = 0; param < num_parameters(); ++param) {
    const auto n = range(param).num_rows * layout(param).row_elements();
    if (n > 0 && layout(param).trainable) parts.push_back({gradient(param), n});
  }
  return parts;
}

bool Engine::decides_on_device() const {
  return input_.ops->decides() && input_.store == nullptr && !policy_.cpu_offload;
}

at::Tensor Engine::decide_step(StepSums step, double loss_scale, double clip_norm, const at::Tensor& before) {
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(observers_, "gradient norm", "collective");
  const auto here = step.values();
  const auto all = step.on_device(at::TensorOptions().device(input_.ops->device()));
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i] != 0) all.narrow(0, static_cast<std::int64_t>(i), 1).add_(here[i]);
  }
  const std::array sums{input_.ops->device_sum_squares(gradient_parts()), all};
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
  double sum = 0;
  if (input_.store != nullptr) {
    for (std::size_t param = 0; param < num_parameters(); ++param) sum += sum_squares(param);
  } else {
    sum = input_.ops->sum_squares(gradient_parts());
  }
  return std::sqrt(input_.mesh->shard.ranks->all_reduce(sum, Reduce::sum));
}

std::vector<double> Engine::gradient_norms() {
  const WithoutAutograd guard;
  std::vector<double> norms;
  for (std::size_t param = 0; param < num_parameters(); ++param) norms.push_back(sum_squares(param));
  input_.mesh->shard.ranks->all_reduce(norms, Reduce::sum);
  for (auto& norm : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace fsdp
