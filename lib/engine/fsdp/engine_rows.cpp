// A rank's rows of master weights and gradients, in memory or in a store.
#include <algorithm>
#include <numeric>

#include "lib/engine/fsdp/buffer_bytes.hpp"
#include "lib/engine/fsdp/engine_unit.hpp"

namespace fsdp {
namespace {

/// Of master weights and two states in float32.
constexpr std::int64_t kElementBytes = 12;

}  // namespace

StoredTensor Engine::store_master_weight(Unit& unit, std::size_t place, at::IntArrayRef sizes) {
  const auto elements = unit.gathered->own_rows(place).numel();
  auto& groups = unit.step_groups;
  if (groups.empty() || (groups.back().elements + elements) * kElementBytes > input_.store->group_bytes())
    groups.push_back({input_.store->add_group(MemoryCategory::optimizer, true), {}, 0});
  groups.back().places.push_back(place);
  groups.back().elements += elements;
  const auto dtype = detail::type_of(unit.layouts[place], policy_.precision.master_dtype);
  return {*input_.store, input_.store->add(groups.back().group, sizes, dtype)};
}

std::vector<StoredTensor> Engine::store_gradients(Unit& unit) {
  unit.grad_group = input_.store->add_group(MemoryCategory::gradients, false);
  std::vector<StoredTensor> shards;
  for (const auto& layout : unit.grad_layouts) {
    const auto& group = *input_.mesh->shard;
    const auto rows = shard_range(layout.rows(), group.size(), group.rank()).padded_rows;
    shards.emplace_back(*input_.store, input_.store->add(*unit.grad_group, layout.shape_with_rows(rows), at::kFloat));
  }
  return shards;
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

/// What is asked of all gradients together is taken while they are at hand. Padding is zero, as it is in memory.
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

void Engine::publish(Unit& unit, std::size_t place) {
  const auto own = unit.gathered->own_rows(place);
  const auto master_weight = unit.master_weights[place].get();
  if (!own.is_same(master_weight)) own.copy_(master_weight);
}

void Engine::with_rows(std::size_t param, Access access, const std::function<void()>& body) {
  auto& unit = unit_of(static_cast<int>(param));
  const auto place = static_cast<std::size_t>(slot_index_[param]);
  const auto& master_weight = unit.master_weights[place];
  if (master_weight.store() == nullptr) {
    body();
    return;
  }
  // A group has other parameters, too: nothing of it is ever overwritten whole here.
  const StoreHold held(*input_.store, master_weight.place().group,
                       access == Access::overwrite ? Access::update : access);
  body();
  if (access == Access::read) return;
  publish(unit, place);
  rows_changed_ = true;
}

void Engine::read_gradients(const std::function<void(const std::vector<std::size_t>& params)>& body) {
  std::vector<std::size_t> params(num_parameters());
  if (input_.store == nullptr) {
    std::iota(params.begin(), params.end(), 0);
    body(params);
    return;
  }
  for (const auto& unit : units_) {
    const auto held = hold_gradients(*unit);
    if (held) body({unit->params.begin(), unit->params.end()});
  }
}

/// What a step's first micro-batch asks for before it computes anything; two units at the most, since they are there
/// between steps as well.
std::vector<int> Engine::first_gathers() {
  constexpr std::size_t kMost = 2;
  std::vector<int> units;
  if (peer_memory_ || input_.store != nullptr || input_.mesh->shard->size() == 1) return units;
  for (const auto& action : plan(true, {})) {
    if (action.kind == ActionKind::forward || action.kind == ActionKind::loss || units.size() == kMost) break;
    if (action.kind == ActionKind::unshard) units.push_back(action.index);
  }
  return units;
}

void Engine::update_units(const std::function<void(const std::vector<std::size_t>& params)>& body) {
  const at::NoGradGuard no_grad;
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
  // What ranks have to agree on before they gather goes out before any of these gathers, or it would wait behind one.
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

void Engine::update_rows(const std::function<void(const std::vector<std::size_t>& params)>& body) {
  if (input_.store == nullptr) {
    read_gradients(body);
    return;
  }
  auto& store = *input_.store;
  std::vector<std::size_t> order;
  for (const auto& unit : units_) {
    if (!unit->grad_group) continue;
    order.push_back(*unit->grad_group);
    for (const auto& part : unit->step_groups) order.push_back(part.group);
  }
  std::size_t next = 0;  // behind what is in use
  for (auto& unit : units_) {
    const auto held = hold_gradients(*unit);
    if (held) ++next;
    for (const auto& part : unit->step_groups) {
      const StoreHold rows(store, part.group, Access::update);
      ++next;
      // A unit's gradients, and the states behind them.
      for (auto ahead = next; ahead < std::min(order.size(), next + 2) && store.read_ahead(order[ahead]); ++ahead) {
      }
      std::vector<std::size_t> params;
      for (const auto place : part.places) params.push_back(static_cast<std::size_t>(unit->params[place]));
      body(params);
      for (const auto place : part.places) publish(*unit, place);
    }
  }
}

}  // namespace fsdp
