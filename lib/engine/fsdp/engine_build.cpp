// How an engine is made: its units, their parameters and gradients.
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/fsdp/buffer_bytes.hpp"
#include "lib/engine/fsdp/engine_unit.hpp"

namespace fsdp {

void Engine::build_units() {
  const MemoryScope scope(MemoryCategory::parameters);
  auto& shard = *input_.mesh->shard;
  const double mine = input_.ops->on_host() && input_.allow_peer_memory ? 1.0 : 0.0;
  peer_memory_ = false;
  if (shard.all_reduce(mine, Reduce::min) > 0) peer_memory_ = shard.peer_memory(4096, 1) != nullptr;
  unit_index_.resize(input_.parameters.size());
  slot_index_.resize(input_.parameters.size());
  const auto dtype = policy_.precision.param_dtype;
  const UnitContext context{shard,
                            *input_.shard_collectives,
                            *input_.ops,
                            peer_memory_,
                            policy_.offload_frozen && !input_.ops->on_host(),
                            policy_.wide_weights && input_.ops->on_host()};
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
    unit->gathered = make_unit_params(context, unit->layouts, dtype, unit->name);
    for (std::size_t i = 0; i < unit->params.size(); ++i) add_parameter(*unit, i);
    units_.push_back(std::move(unit));
  }
}

void Engine::add_parameter(Unit& unit, std::size_t place) {
  const auto& layout = unit.layouts[place];
  const auto& precision = policy_.precision;
  const auto dtype = detail::type_of(layout, precision.param_dtype);
  const auto master_dtype = detail::type_of(layout, precision.master_dtype);
  const auto own = unit.gathered->own_rows(place);
  const bool same = dtype == master_dtype && (!policy_.cpu_offload || input_.ops->on_host());
  // In one type, and of a frozen parameter, the gathered rows are the master weights; otherwise master weights stand
  // apart and are narrowed on publish.
  const auto device = policy_.cpu_offload ? input_.ops->host() : input_.ops->device();
  if (!layout.trainable || (same && input_.store == nullptr)) {
    unit.master_weights.emplace_back(own);
  } else if (input_.store != nullptr) {
    unit.master_weights.push_back(store_master_weight(unit, place, own.sizes()));
  } else {
    const MemoryScope host_scope(MemoryCategory::parameters, policy_.cpu_offload);
    unit.master_weights.emplace_back(at::zeros(own.sizes(), at::TensorOptions(master_dtype).device(device)));
  }
  const auto others = own.numel() * (input_.mesh->shard->size() - 1);
  unit.gather_bytes += others * static_cast<std::int64_t>(c10::elementSize(unit.gathered->gathered_type(place)));
  unit.trained.push_back(layout.trainable ? static_cast<int>(unit.grad_layouts.size()) : -1);
  if (!layout.trainable) return;
  unit.grad_layouts.push_back(layout);
  unit.reduce_bytes +=
      others * static_cast<std::int64_t>(c10::elementSize(detail::type_of(layout, precision.reduce_dtype)));
  unit.shard_elements += own.numel();
}

void Engine::build_gradients() {
  auto& shard = *input_.mesh->shard;
  const UnitContext context{shard, *input_.shard_collectives, *input_.ops, peer_memory_};
  // Sums over many micro-batches would lose digits in 16 bits.
  const bool accumulate_locally = input_.accumulation_steps > 1 && !policy_.reduce_every_micro_batch;
  const auto travels_as = [&](const Unit& unit) {
    const bool any_float = std::any_of(unit.grad_layouts.begin(), unit.grad_layouts.end(),
                                       [](const ParamLayout& layout) { return layout.is_float; });
    return accumulate_locally || any_float ? at::kFloat : policy_.precision.reduce_dtype;
  };
  // NCCL and the host sum bf16 in one rounding; fp16 would overflow sooner than one rank's gradients do.
  for (auto& unit : units_) {
    if (travels_as(*unit) == at::kBFloat16) unit->wire_dtype = at::kBFloat16;
  }
  // What a GPU sums with no other it writes in float32 at once, where it stays: products round once into either type.
  const bool stays = shard.size() == 1 && !input_.ops->on_host();
  const auto type_of = [&](const Unit& unit) { return stays ? at::kFloat : travels_as(unit); };
  const auto context_of = [&](Unit& unit) {
    auto its = context;
    if (input_.store != nullptr) its.stored_grads = store_gradients(unit);
    return its;
  };
  if (!peer_memory_) {
    for (auto& unit : units_) {
      if (unit->grad_layouts.empty()) continue;
      unit->grads = make_collective_unit_grads(context_of(*unit), unit->grad_layouts, type_of(*unit),
                                               policy_.cpu_offload, policy_.reduce_every_micro_batch);
    }
    return;
  }
  // Slot 0 is the root's, 1 and 2 are shared by the blocks; with local accumulation each unit has a slot of its own.
  // Alone on the shard axis too: the full gradient then is the shard, unless that goes to a disk.
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

}  // namespace fsdp
