#include "lib/engine/fsdp/host_inputs.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

void HostInputs::keep(const at::Tensor& x) {
  finish_keep();
  kept_.push_back(room_for(x));
  to_host_ = ops_.start_transfer(kept_.back(), x);
}

void HostInputs::fetch() {
  finish_keep();
  if (kept_.empty() || fetched_.defined()) return;
  const MemoryScope scope(MemoryCategory::activations);
  fetched_ = at::empty(kept_.back().sizes(), kept_.back().options().device(ops_.device()));
  to_device_ = ops_.start_transfer(fetched_, kept_.back());
}

at::Tensor HostInputs::take() {
  fetch();
  if (to_device_ != nullptr) to_device_->wait();
  to_device_.reset();
  const auto x = std::exchange(fetched_, at::Tensor());
  kept_.pop_back();
  fetch();
  return x;
}

void HostInputs::clear() {
  finish_keep();
  if (to_device_ != nullptr) to_device_->wait();
  to_device_.reset();
  fetched_.reset();
  kept_.clear();
}

void HostInputs::finish_keep() {
  if (to_host_ != nullptr) to_host_->wait();
  to_host_.reset();
}

/// Returns host memory in x's shape for the next place of the stack. The memory is reused in later micro-batches.
at::Tensor HostInputs::room_for(const at::Tensor& x) {
  if (kept_.size() == rooms_.size()) rooms_.emplace_back();
  auto& [room, lock] = rooms_[kept_.size()];
  const auto has = room.defined() ? room.numel() : 0;
  if (has < x.numel()) {
    const MemoryScope scope(MemoryCategory::activations, true);
    if (has > 0) outgrown_.emplace_back(room, lock);
    // Rows of different lengths would otherwise lock new pages again and again.
    room = at::empty({std::max(x.numel(), has + has / 2)}, x.options().device(ops_.host()));
    lock = ops_.lock_pages(room);
  }
  return room.narrow(0, 0, x.numel()).view(x.sizes());
}

}  // namespace fsdp
