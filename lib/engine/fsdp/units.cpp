#include "lib/engine/fsdp/units.hpp"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp::detail {

Units::Units(const EngineInput& input, const EnginePolicy& policy, ShardStorage& storage)
    : input_(input), policy_(policy), storage_(storage) {
  build_parameters();
  build_gradients();
}

void Units::build_parameters() {
  const MemoryScope scope(MemoryCategory::parameters);
  auto& shard = *input_.mesh->shard.ranks;
  const double local = input_.ops->on_host() && input_.allow_peer_memory ? 1.0 : 0.0;
  if (shard.all_reduce(local, Reduce::min) > 0) peer_memory_ = shard.peer_memory(4096, 1) != nullptr;
  unit_index_.resize(input_.parameters.size());
  place_.resize(input_.parameters.size());
  const UnitContext context{.shard_group = shard,
                            .collectives = *input_.mesh->shard.collectives,
                            .ops = *input_.ops,
                            .use_peer_memory = peer_memory_,
                            .stays_gathered = stays_gathered(policy_.sharding),
                            .offload_frozen = policy_.offload_frozen && !input_.ops->on_host(),
                            .wide_weights = policy_.wide_weights && input_.ops->on_host()};
  for (const auto& params : input_.units) {
    auto& unit = *units_.emplace_back(std::make_unique<Unit>());
    unit.index = static_cast<int>(units_.size()) - 1;
    unit.name = "unit " + std::to_string(unit.index);
    unit.params = params;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto param = to_index(params[i]);
      unit_index_[param] = unit.index;
      place_[param] = static_cast<int>(i);
      unit.layouts.push_back(input_.parameters[param]);
      unit.ranges.push_back(shard_range(unit.layouts.back().rows(), shard.size(), shard.rank()));
    }
    auto unit_context = context;
    if (policy_.offload_parameters && !peer_memory_) unit_context.stored_params = storage_.make_parameters(unit);
    unit.gathered = make_unit_params(unit_context, unit.layouts, policy_.precision.param_dtype, unit.name);
    for (std::size_t i = 0; i < params.size(); ++i) add_parameter(unit, i);
  }
}

void Units::add_parameter(Unit& unit, std::size_t place) {
  const auto& layout = unit.layouts[place];
  const auto own = unit.gathered->local_shard(place);
  unit.master_weights.push_back(layout.trainable ? storage_.make_master_weight(unit, place, own) : own);
  const auto elements = c10::multiply_integers(own.sizes());
  const auto others = elements * (input_.mesh->shard.size() - 1);
  unit.gather_bytes += others * static_cast<std::int64_t>(c10::elementSize(unit.gathered->gathered_type(place)));
  unit.trained.push_back(layout.trainable ? static_cast<int>(unit.grad_layouts.size()) : -1);
  if (!layout.trainable) return;
  unit.grad_layouts.push_back(layout);
  unit.reduce_bytes +=
      others * static_cast<std::int64_t>(c10::elementSize(type_of(layout, policy_.precision.reduce_dtype)));
  unit.shard_elements += elements;
}

void Units::build_gradients() {
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
  const bool reads_bf16 = input_.step.takes_bf16 && input_.step.micro_batches == 1 && input_.ops->decides() &&
                          shards_are_on_device(policy_, storage_) && policy_.precision.param_dtype == at::kBFloat16;
  const auto shard_type_of = [&](const Unit& unit) {
    return reads_bf16 && travels_as(unit) == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  };
  // Without a reduce-scatter a GPU writes gradients to their final place: GEMMs round once into either dtype.
  const bool stays = shard.size() == 1 && !input_.ops->on_host();
  const auto dtype_of = [&](const Unit& unit) { return stays ? shard_type_of(unit) : travels_as(unit); };
  const auto context_of = [&](const Unit& unit) {
    auto unit_context = context;
    unit_context.stored_grads = storage_.make_gradients(unit);
    return unit_context;
  };
  if (!peer_memory_) {
    for (auto& unit : units_) {
      if (unit->grad_layouts.empty()) continue;
      unit->grads =
          make_collective_unit_grads(context_of(*unit), unit->grad_layouts, dtype_of(*unit), shard_type_of(*unit),
                                     policy_.cpu_offload, policy_.reduce_every_micro_batch);
    }
    return;
  }
  // Slot 0 belongs to the root; blocks share slots 1 and 2. With local accumulation each unit has its own slot, and on
  // a shard axis of one rank, too: there the full gradient is the shard, unless the shard leaves memory.
  const bool own_slots = accumulate_locally || (shard.size() == 1 && storage_.stays_in_memory());
  std::vector<std::size_t> slot_bytes;
  std::size_t largest = 0;
  for (const auto& unit : units_) {
    const auto bytes = grad_slot_bytes(unit->grad_layouts, dtype_of(*unit), shard.size());
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
    unit->grads = make_shared_unit_grads(context_of(*unit), unit->grad_layouts, dtype_of(*unit), memory, slots, next);
  }
}

at::Tensor Units::gradient(std::size_t param) const {
  auto& unit = of(param);
  const int index = unit.trained[place(param)];
  if (index < 0 || !storage_.has_gradients(unit)) return {};
  unit.grads->prepare();
  return unit.grads->shard(to_index(index));
}

std::vector<GradPart> Units::gradient_parts(std::span<const std::size_t> params) const {
  std::vector<GradPart> parts;
  for (const auto param : params) {
    const auto& unit = of(param);
    const auto& layout = unit.layouts[place(param)];
    const auto n = unit.ranges[place(param)].num_rows * layout.row_elements();
    if (n > 0 && layout.trainable) parts.push_back({gradient(param), n});
  }
  return parts;
}

std::vector<at::Tensor> Units::full(const std::vector<int>& params) const {
  std::vector<at::Tensor> full;
  full.reserve(params.size());
  for (const int param : params) {
    const auto index = to_index(param);
    full.push_back(of(index).gathered->full(place(index)));
  }
  return full;
}

std::vector<GradSlot*> Units::grad_slots(const std::vector<int>& params) const {
  std::vector<GradSlot*> slots;
  for (const int param : params) {
    const auto index = to_index(param);
    auto& unit = of(index);
    const int trained = unit.trained[place(index)];
    if (trained >= 0) unit.grads->begin();
    slots.push_back(trained < 0 ? nullptr : &element(unit.grads->slots(), trained));
  }
  return slots;
}

void Units::unshard(Unit& unit, AxisCounts& counts) const {
  if (input_.mesh->shard.size() > 1) {
    ++counts.all_gathers;
    counts.bytes += unit.gather_bytes;
  }
  unit.gathered->unshard();
  storage_.begin_gather(unit);
}

void Units::forget_gathered() const {
  for (const auto& unit : units_) unit->is_gathered = false;
}

void Units::release_coming() const {
  for (const auto& unit : units_) {
    if (!std::exchange(unit->is_coming, false)) continue;
    unit->gathered->wait_for_unshard();
    unit->gathered->reshard();
  }
}

bool shards_are_on_device(const EnginePolicy& policy, const ShardStorage& storage) {
  return storage.stays_in_memory() && !policy.cpu_offload;
}

}  // namespace fsdp::detail
