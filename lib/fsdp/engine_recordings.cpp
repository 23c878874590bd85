#include "lib/fsdp/engine_recordings.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "lib/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

/// Of documents of many lengths: each recording costs the driver memory of its own.
constexpr std::int64_t kMostRecordings = 16;

}  // namespace

bool Engine::Recordings::takes(const MicroBatch& batch, MicroBatchPlace place, double grad_scale) const {
  const auto& input = engine_.input_;
  const bool crosses_ranks = place.last && input.mesh->replicate->size() > 1;
  // Gradients of several micro-batches lie in one place for good where their number was announced.
  const bool adds_up = !place.first || !place.last;
  return batch.rows > 0 && batch.rows * batch.length <= engine_.policy_.recorded_tokens && batch.packing == nullptr &&
         batch.first_position == 0 && grad_scale != 0 && !crosses_ranks && (!adds_up || input.accumulation_steps > 1);
}

std::optional<LossSum> Engine::Recordings::run(const MicroBatch& batch, MicroBatchPlace place, double grad_scale) {
  if (place.first) ++step_;
  if (!counts_.problem.empty() || !takes(batch, place, grad_scale)) return std::nullopt;
  const Key key{batch.rows, batch.length, place.first, place.last, batch.sample_keys.defined()};
  const auto [at, is_new] = recordings_.try_emplace(key);
  auto& recording = at->second;
  if (is_new) recording.seen_in_step = step_;
  // In a step of its own everything has run once, and no other shape of the step needs what the first ones left.
  if (recording.work == nullptr && (recording.seen_in_step == step_ || counts_.recorded == kMostRecordings))
    return std::nullopt;
  const at::NoGradGuard no_grad;
  const auto& inputs = fill(batch, grad_scale);
  if (recording.work != nullptr) {
    follow(place);
  } else if (!record(recording, inputs, place, grad_scale)) {
    return std::nullopt;
  }
  const EngineObservers::Scope scope(engine_.observers_, "recorded micro-batch", "compute");
  recording.work->run();
  ++counts_.replayed;
  // The next run() of this or another recording changes what they hold.
  auto loss = recording.loss;
  loss.pending = loss.pending.clone();
  return loss;
}

Engine::Recordings::Inputs& Engine::Recordings::fill(const MicroBatch& batch, double grad_scale) {
  const bool drops = batch.sample_keys.defined();
  auto& inputs = inputs_[{batch.rows, batch.length, drops}];
  auto& there = inputs.batch;
  if (!inputs.scale.defined()) {
    const MemoryScope scope(MemoryCategory::batch);
    const auto device = engine_.input_.ops->device();
    there.rows = batch.rows;
    there.length = batch.length;
    there.ids_N = at::empty_like(batch.ids_N);
    there.targets_N = at::empty_like(batch.targets_N);
    if (drops) there.sample_keys = at::empty({batch.rows}, at::TensorOptions(at::kLong).device(device));
    inputs.scale = at::empty({1}, at::TensorOptions(at::kFloat).device(device));
  }
  there.num_targets = batch.num_targets;
  there.ids_N.copy_(batch.ids_N);
  there.targets_N.copy_(batch.targets_N);
  if (drops) there.sample_keys.copy_(batch.sample_keys, /*non_blocking=*/true);
  inputs.scale.fill_(grad_scale);
  return inputs;
}

/// \return false: the device cannot, and the engine stands as before
bool Engine::Recordings::record(Recording& recording, const Inputs& inputs, MicroBatchPlace place, double grad_scale) {
  std::vector<bool> gathered;
  for (const auto& unit : engine_.units_) gathered.push_back(unit->is_gathered);
  GradScale scale(grad_scale);
  scale.on_device = inputs.scale;
  try {
    recording.work = engine_.input_.ops->recorder()->record([&] {
      Run state{inputs.batch, place, scale, true, {}, {}, {}, {}, {}};
      recording.loss = engine_.run(engine_.plan(true, place), state);
    });
    if (!recording.loss.pending.defined()) throw std::logic_error("a recorded loss that is not the device's");
    ++counts_.recorded;
    return true;
  } catch (const std::exception& error) {
    counts_.problem = error.what();
  }
  recordings_.clear();  // with the memory that they keep
  inputs_.clear();
  engine_.settling_ = nullptr;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    auto& unit = *engine_.units_[i];
    unit.is_gathered = gathered[i];
    if (unit.grads != nullptr) unit.grads->stand(!place.first);
  }
  return false;
}

/// What the engine itself does in a micro-batch whose work the device was given.
void Engine::Recordings::follow(MicroBatchPlace place) {
  for (const auto& action : engine_.plan(true, place)) {
    const bool gathers = action.kind == ActionKind::unshard || action.kind == ActionKind::wait_for_unshard ||
                         action.kind == ActionKind::reshard;
    if (!gathers) continue;
    auto& unit = *engine_.units_[static_cast<std::size_t>(action.index)];
    if (action.kind == ActionKind::wait_for_unshard) unit.is_gathered = true;
    if (action.kind == ActionKind::reshard) unit.is_gathered = false;
  }
  for (const auto& unit : engine_.units_) {
    if (unit->grads != nullptr) unit->grads->stand(!place.last);
  }
}

}  // namespace fsdp
