// Sums of gradients over replicas, and the norms and decisions that come of them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <utility>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/fsdp/engine_unit.hpp"

namespace fsdp {

void Engine::start_replicas(Unit& unit) {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  std::vector<PublishedRows> narrowed;
  for (std::size_t i = 0; i < unit.grad_layouts.size(); ++i) {
    // Those of a disk by way of the device, where that is not the host.
    const auto sum = input_.ops->to_device(unit.grads->device_sum(i));
    const bool same = sum.scalar_type() == unit.wire_dtype;
    unit.replica_sums.push_back(same ? sum : at::empty(sum.sizes(), sum.options().dtype(unit.wire_dtype)));
    if (!same) narrowed.push_back({unit.replica_sums.back(), sum});
    // All in one pass; the copy of what is on a disk goes at once.
    const bool is_last = i + 1 == unit.grad_layouts.size();
    if (is_last || input_.store != nullptr) input_.ops->publish(std::exchange(narrowed, {}));
  }
  unit.replica_work = input_.replicate_collectives->all_reduce(unit.replica_sums);
  ++counts_.replicate.all_reduces;
  counts_.replicate.bytes += unit.shard_elements * static_cast<std::int64_t>(c10::elementSize(unit.wire_dtype));
}

/// Waits for what was left under way of the last unit's gradients, one unit late as reductions are: meanwhile the next
/// unit's backward computes.
void Engine::settle() {
  for (const auto& transfer : leaving_) transfer->wait();
  leaving_.clear();
  if (settling_ == nullptr) return;
  auto& unit = *std::exchange(settling_, nullptr);
  if (unit.replica_work != nullptr) finish_replicas(unit);
  unit.grads->settle();
}

void Engine::finish_replicas(Unit& unit) {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  unit.replica_work->wait();
  unit.replica_work.reset();
  std::vector<WidenedRows> widened;
  for (std::size_t i = 0; i < unit.grad_layouts.size(); ++i) {
    const auto shard = unit.grads->shard(i);
    const auto& sum = unit.replica_sums[i];
    if (shard.is_same(sum)) continue;
    // Widened before it leaves: between types the host would wait for the copy, and for a peer that is gone for ever.
    if (!policy_.cpu_offload || input_.ops->on_host()) {
      widened.push_back({shard, sum});
    } else if (input_.store != nullptr) {
      input_.ops->transfer(shard, sum.to(at::kFloat));
    } else if (auto transfer = input_.ops->start_transfer(shard, sum.to(at::kFloat))) {
      leaving_.push_back(std::move(transfer));
    }
  }
  input_.ops->widen(widened);
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
  return input_.ops->step_decider() != nullptr && input_.store == nullptr && !policy_.cpu_offload;
}

at::Tensor Engine::decide_step(const LossSum& loss, double loss_scale, double clip_norm) {
  const at::NoGradGuard no_grad;
  const EngineObservers::Scope scope(observers_, "gradient norm", "collective");
  auto nats = loss.pending;
  if (!nats.defined()) nats = at::zeros({2}, at::TensorOptions(at::kDouble).device(input_.ops->device()));
  if (loss.loss_sum != 0) nats.narrow(0, 0, 1).add_(loss.loss_sum);
  const auto& decider = *input_.ops->step_decider();
  const std::array sums{decider.device_sum_squares(gradient_parts()), nats};
  const auto sum_over = [&](const ProcessGroup& axis, TensorCollectives& ranks) {
    if (axis.size() > 1) ranks.all_reduce(sums)->wait();
  };
  sum_over(*input_.mesh->shard, *input_.shard_collectives);
  // Replicas have the same gradients; their sums go together, too, so that all decide by the same bits.
  sum_over(*input_.mesh->replicate, *input_.replicate_collectives);
  return decider.decide({sums[0], sums[1], input_.mesh->replicate->size(), loss_scale, clip_norm});
}

double Engine::gradient_norm() {
  const at::NoGradGuard no_grad;
  const EngineObservers::Scope scope(observers_, "gradient norm", "collective");
  double sum = 0;
  if (input_.store != nullptr) {
    for (std::size_t param = 0; param < num_parameters(); ++param) sum += sum_squares(param);
  } else {
    sum = input_.ops->sum_squares(gradient_parts());
  }
  return std::sqrt(input_.mesh->shard->all_reduce(sum, Reduce::sum));
}

std::vector<double> Engine::gradient_norms() {
  const at::NoGradGuard no_grad;
  std::vector<double> norms;
  for (std::size_t param = 0; param < num_parameters(); ++param) norms.push_back(sum_squares(param));
  input_.mesh->shard->all_reduce(norms, Reduce::sum);
  for (auto& norm : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace fsdp
