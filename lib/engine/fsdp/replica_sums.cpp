#include "lib/engine/fsdp/replica_sums.hpp"

#include <ATen/ops/empty.h>

#include <utility>

#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp::detail {

void ReplicaSums::start(Unit& unit, bool over_replicas) {
  unit_ = &unit;
  if (over_replicas) start_sum();
}

void ReplicaSums::start_sum() {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  const auto& ops = *input_.ops;
  std::vector<CastShard> casts;
  for (std::size_t i = 0; i < unit_->grad_layouts.size(); ++i) {
    const auto shard = unit_->grads->device_sum(i);
    const auto sum = ops.to_device(shard);
    const bool same = sum.scalar_type() == unit_->wire_dtype;
    sums_.push_back(same ? sum : at::empty(sum.sizes(), sum.options().dtype(unit_->wire_dtype)));
    if (!same) casts.push_back({sums_.back(), sum});
    // Cast all in one launch, but a copy of what is on the host at once, so that it can be freed.
    const bool is_last = i + 1 == unit_->grad_layouts.size();
    if (is_last || !sum.is_same(shard)) ops.cast_shards(std::exchange(casts, {}));
  }
  work_ = input_.mesh->replicate.collectives->all_reduce(sums_);
  ++counts_.all_reduces;
  counts_.bytes += unit_->shard_elements * static_cast<std::int64_t>(c10::elementSize(unit_->wire_dtype));
}

void ReplicaSums::drain() {
  for (const auto& transfer : transfers_) transfer->wait();
  transfers_.clear();
  if (unit_ == nullptr) return;
  if (work_ != nullptr) finish_sum();
  std::exchange(unit_, nullptr)->grads->wait_for_transfers();
}

void ReplicaSums::finish_sum() {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  const auto& ops = *input_.ops;
  work_->wait();
  work_.reset();
  std::vector<UpcastSum> upcasts;
  for (std::size_t i = 0; i < unit_->grad_layouts.size(); ++i) {
    const auto shard = unit_->grads->shard(i);
    const auto& sum = sums_[i];
    if (shard.is_same(sum)) continue;
    if (!policy_.cpu_offload || ops.on_host()) {
      upcasts.push_back({shard, sum});
    } else if (auto transfer = unit_->grads->send(i, sum.to(at::kFloat))) {
      // It was cast before the copy: a copy between dtypes blocks the host, for ever if a peer has died.
      transfers_.push_back(std::move(transfer));
    }
  }
  ops.upcast_sums(upcasts);
  sums_.clear();
}

}  // namespace fsdp::detail
