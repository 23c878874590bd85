#include "lib/base/types/index.hpp"
#include "lib/engine/fsdp/engine_internal.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/engine/fsdp/replica_sums.hpp"
#include "lib/engine/fsdp/units.hpp"

namespace fsdp {
namespace {

/// Limit of graphs, since each one costs the driver memory and inputs may have many lengths.
constexpr std::int64_t kMaxGraphs = 16;
/// After this many failed captures the device is not asked again.
constexpr std::int64_t kMaxRefusals = 4;

}  // namespace

bool Engine::GraphCache::is_capturable(const MicroBatch& batch, MicroBatchPosition place, double grad_scale) const {
  const auto& input = engine_.input_;
  const bool crosses_ranks = place.last && input.mesh->replicate.size() > 1;
  // Gradient buffers keep their addresses across micro-batches only when accumulation was announced.
  const bool adds_up = !place.first || !place.last;
  return batch.rows > 0 && batch.rows * batch.length <= engine_.policy_.graph_max_tokens && batch.packing == nullptr &&
         batch.joint == nullptr && batch.first_position == 0 && grad_scale != 0 && !crosses_ranks &&
         (!adds_up || input.step.micro_batches > 1);
}

Engine::GraphCache::Shape Engine::GraphCache::shape_of(const MicroBatch& batch) {
  return {batch.rows, batch.length, batch.sample_keys.defined(), batch.weights_N.defined(), batch.groups_N.defined()};
}

std::optional<StepSums> Engine::GraphCache::run(const MicroBatch& batch, MicroBatchPosition place, double grad_scale) {
  if (place.first) ++step_;
  if (!is_capturable(batch, place, grad_scale)) return std::nullopt;
  const Key key{shape_of(batch), place.first, place.last};
  const auto [at, is_new] = graphs_.try_emplace(key);
  auto& graph = at->second;
  if (is_new) graph.seen_in_step = step_;
  // Capture not before the step after the first use: by then lazy initialisation is done, and no other shape of that
  // step depends on state that its first micro-batches left.
  const bool is_ready = graph.work != nullptr;
  if (!is_ready && (graph.is_refused || graph.seen_in_step == step_ || counts_.recorded == kMaxGraphs ||
                    counts_.refused == kMaxRefusals))
    return std::nullopt;
  const WithoutAutograd guard;
  const EngineObservers::Scope scope(engine_.observers_, "recorded micro-batch", "compute");
  const auto& inputs = copy_inputs(batch, grad_scale);
  if (!is_ready && !capture(graph, inputs, place, grad_scale)) return std::nullopt;
  // The next replay overwrites graph.sums, so return a copy.
  auto sums = graph.sums;
  sums.pending = at::empty_like(sums.pending);
  if (is_ready) apply_replay(place);
  graph.work->run();
  ++counts_.replayed;
  sums.pending.copy_(graph.sums.pending);
  return sums;
}

std::vector<bool> Engine::GraphCache::gathered_units() const {
  std::vector<bool> gathered;
  for (const auto& unit : *engine_.units_) gathered.push_back(unit->is_gathered);
  return gathered;
}

/// Resets the engine after an interrupted capture, except for gradients.
void Engine::GraphCache::roll_back(const std::vector<bool>& gathered) {
  engine_.replica_sums_->forget();
  for (std::size_t i = 0; i < gathered.size(); ++i) (*engine_.units_)[i].is_gathered = gathered[i];
}

Engine::GraphCache::Inputs& Engine::GraphCache::copy_inputs(const MicroBatch& batch, double grad_scale) {
  const bool drops = batch.sample_keys.defined();
  auto& inputs = inputs_[shape_of(batch)];
  auto& there = inputs.batch;
  if (!inputs.scale.defined()) {
    const MemoryScope scope(MemoryCategory::batch);
    const auto device = engine_.input_.ops->device();
    there.rows = batch.rows;
    there.length = batch.length;
    there.ids_N = at::empty_like(batch.ids_N);
    there.targets_N = at::empty_like(batch.targets_N);
    if (batch.weights_N.defined()) there.weights_N = at::empty_like(batch.weights_N);
    if (batch.groups_N.defined()) there.groups_N = at::empty_like(batch.groups_N);
    if (drops) there.sample_keys = at::empty({batch.rows}, at::TensorOptions(at::kLong).device(device));
    inputs.scale = at::empty({1}, at::TensorOptions(at::kFloat).device(device));
  }
  there.num_targets = batch.num_targets;
  there.ids_N.copy_(batch.ids_N);
  there.targets_N.copy_(batch.targets_N);
  if (batch.weights_N.defined()) there.weights_N.copy_(batch.weights_N);
  if (batch.groups_N.defined()) there.groups_N.copy_(batch.groups_N);
  if (drops) there.sample_keys.copy_(engine_.input_.ops->to_device(batch.sample_keys));
  inputs.scale.fill_(grad_scale);
  return inputs;
}

/// \return false: the device cannot capture it; the state of the engine and other graphs are unchanged
bool Engine::GraphCache::capture(Graph& graph, const Inputs& inputs, MicroBatchPosition place, double grad_scale) {
  const auto gathered = gathered_units();
  GradScale scale(grad_scale);
  scale.on_device = inputs.scale;
  try {
    graph.work = engine_.input_.ops->recorder()->record([&] {
      Run state{.batch = inputs.batch, .place = place, .grad_scale = scale, .training = true};
      graph.sums = engine_.run(engine_.plan(true, place), state);
    });
    if (!graph.sums.pending.defined()) throw std::logic_error("a recorded loss that is not the device's");
    ++counts_.recorded;
    return true;
  } catch (const std::exception& error) {
    counts_.problem = error.what();
    ++counts_.refused;
  }
  graph = {};
  graph.is_refused = true;
  roll_back(gathered);
  for (const auto& unit : *engine_.units_) {
    if (unit->grads != nullptr) unit->grads->set_state_after_replay(!place.first);
  }
  return false;
}

/// Updates the host-side state of units as if the micro-batch had run without a graph.
void Engine::GraphCache::apply_replay(MicroBatchPosition place) {
  for (const auto& action : engine_.plan(true, place)) {
    const bool gathers = action.kind == ActionKind::unshard || action.kind == ActionKind::wait_for_unshard ||
                         action.kind == ActionKind::reshard;
    if (!gathers) continue;
    auto& unit = element(*engine_.units_, action.index);
    if (action.kind == ActionKind::wait_for_unshard) unit.is_gathered = true;
    if (action.kind == ActionKind::reshard) unit.is_gathered = false;
  }
  for (const auto& unit : *engine_.units_) {
    if (unit->grads != nullptr) unit->grads->set_state_after_replay(!place.last);
  }
}

}  // namespace fsdp
