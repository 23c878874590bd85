#include "lib/engine/fsdp/unit_grads.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <stdexcept>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

namespace fsdp {
namespace {

std::vector<StoredTensor> make_shards(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                      at::ScalarType dtype, bool on_host) {
  if (!context.stored_grads.empty()) return context.stored_grads;
  const MemoryScope scope(MemoryCategory::gradients, on_host);
  const auto& group = context.shard_group;
  const auto device = on_host ? context.ops.host() : context.ops.device();
  std::vector<StoredTensor> shards;
  for (const auto& layout : layouts) {
    const auto range = shard_range(layout.rows(), group.size(), group.rank());
    shards.emplace_back(at::zeros(layout.shape_with_rows(range.padded_rows), at::TensorOptions(dtype).device(device)));
  }
  return shards;
}

class SharedUnitGrads final : public UnitGrads {
 public:
  SharedUnitGrads(const UnitContext& context, std::vector<ParamLayout> layouts, at::ScalarType dtype,
                  std::shared_ptr<GradMemory> memory, std::vector<int> slots, std::shared_ptr<std::size_t> next_slot)
      : context_(context),
        layouts_(std::move(layouts)),
        dtype_(dtype),
        memory_(std::move(memory)),
        my_slots_(std::move(slots)),
        next_slot_(std::move(next_slot)) {
    for (const int slot : my_slots_) views_.push_back(make_views(slot));
    // On a shard axis of one rank and in float32 the full gradient is the shard: no second copy.
    in_place_ = context_.shard_group.size() == 1 && dtype_ == at::kFloat && my_slots_.size() == 1 &&
                context_.stored_grads.empty();
  }

  void prepare() override {
    if (!shards_.empty()) return;
    if (!in_place_) {
      shards_ = make_shards(context_, layouts_, at::kFloat, true);
      return;
    }
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      shards_.emplace_back(views_[0][i].grad.narrow(0, 0, layouts_[i].rows()));
    }
  }

  void begin() override {
    if (open_) return;
    open_ = true;
    which_ = my_slots_.size() == 1 ? 0 : (*next_slot_)++ % my_slots_.size();
    memory_->begin(my_slots_[which_]);
    for (auto& view : views_[which_]) view.written = false;
  }
  std::vector<GradSlot>& slots() override { return views_[which_]; }

  void start_reduce(bool accumulate) override {
    accumulate_ = accumulate;
    for (auto& view : views_[which_]) Ops::finish(view);
    memory_->mark_ready(my_slots_[which_]);
  }

  void finish_reduce(bool /*stay*/) override {
    const int slot = my_slots_[which_];
    memory_->wait_ready(slot);
    if (!in_place_) sum(slot);
    memory_->mark_consumed(slot);
    open_ = false;
  }
  void set_state_after_replay(bool) override {
    throw std::logic_error("gradients in shared memory are written as they come");
  }
  at::Tensor shard(std::size_t param) override { return shards_[param].get(); }

 private:
  std::vector<GradSlot> make_views(int slot) const {
    std::vector<GradSlot> views;
    std::size_t offset = 0;
    for (const auto& layout : layouts_) {
      auto buffer =
          context_.ops.tensor_at(memory_->address(context_.shard_group.rank(), slot) + offset,
                                 layout.shape_with_rows(layout.buffer_rows(context_.shard_group.size())), dtype_);
      views.push_back({buffer.narrow(0, 0, layout.compute_rows()), false});
      offset += detail::buffer_bytes(layout, dtype_, context_.shard_group.size());
    }
    return views;
  }
  void sum(int slot) {
    std::size_t offset = 0;
    std::vector<const void*> sources(context_.shard_group.size());
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto& layout = layouts_[i];
      const auto range = shard_range(layout.rows(), context_.shard_group.size(), context_.shard_group.rank());
      const auto skip = static_cast<std::size_t>(range.first_row * layout.row_elements()) * c10::elementSize(dtype_);
      for (int r = 0; r < context_.shard_group.size(); ++r) {
        element(sources, r) = memory_->address(r, slot) + offset + skip;
      }
      context_.ops.sum_sources(shards_[i].get(), range.num_rows * layout.row_elements(), sources, dtype_, accumulate_);
      offset += detail::buffer_bytes(layout, dtype_, context_.shard_group.size());
    }
  }

  UnitContext context_;
  std::vector<ParamLayout> layouts_;
  at::ScalarType dtype_;
  std::shared_ptr<GradMemory> memory_;
  std::vector<int> my_slots_;
  std::shared_ptr<std::size_t> next_slot_;
  std::vector<std::vector<GradSlot>> views_;  // [slot][param]
  std::vector<StoredTensor> shards_;
  std::size_t which_ = 0;
  bool open_ = false;
  bool accumulate_ = false;
  bool in_place_ = false;
};

class CollectiveUnitGrads final : public UnitGrads {
 public:
  CollectiveUnitGrads(const UnitContext& context, std::vector<ParamLayout> layouts, at::ScalarType dtype,
                      at::ScalarType shard_dtype, bool shards_on_host, bool accumulates)
      : context_(context),
        layouts_(std::move(layouts)),
        groups_(side_by_side(layouts_, context_.shard_group.size(), context_.ops.joins_products())),
        options_(at::TensorOptions(dtype).device(context.ops.device())),
        shard_dtype_(shard_dtype),
        shards_on_host_(shards_on_host),
        elsewhere_(shards_on_host && !context_.ops.on_host()),
        alone_(context_.shard_group.size() == 1),
        in_place_(alone_ && dtype == shard_dtype && !shards_on_host && !accumulates && context_.stored_grads.empty()) {}

  void prepare() override {
    if (!shards_.empty()) return;
    if (!in_place_) {
      shards_ = make_shards(context_, layouts_, shard_dtype_, shards_on_host_);
      for (const auto& shard : shards_) {
        if (shards_on_host_ && shard.store() == nullptr) locked_.push_back(context_.ops.lock_pages(shard.get()));
      }
      return;
    }
    const MemoryScope scope(MemoryCategory::gradients);
    allocate([&](at::IntArrayRef sizes) { return at::zeros(sizes, options_); });
    for (std::size_t i = 0; i < layouts_.size(); ++i)
      shards_.emplace_back(buffers_[i].narrow(0, 0, layouts_[i].rows()));
  }

  void begin() override {
    if (!slots_.empty()) return;
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    if (!in_place_) allocate([&](at::IntArrayRef sizes) { return at::empty(sizes, options_); });
    for (std::size_t i = 0; i < layouts_.size(); ++i)
      slots_.push_back({buffers_[i].narrow(0, 0, layouts_[i].compute_rows()), false});
  }
  std::vector<GradSlot>& slots() override { return slots_; }

  void start_reduce(bool accumulate) override {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Ops::finish(slots_[i]);
      // The reduce-scatter includes the padding rows; zero them so that the padding of the shards stays zero.
      const auto rows = layouts_[i].compute_rows();
      buffers_[i].narrow(0, rows, buffers_[i].size(0) - rows).zero_();
    }
    accumulate_ = accumulate;
    if (alone_) return;
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    // The reduce-scatter overlaps with the backward of the next unit; finish_reduce() waits for it.
    std::vector<TensorReduce> reduces;
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto rows = shards_[i].sizes().front() * context_.shard_group.size();
      targets_.push_back(target_of(i, accumulate));
      reduces.push_back({buffers_[i].narrow(0, 0, rows), targets_.back(), accumulate});
    }
    work_ = context_.collectives.reduce_scatter(reduces);
  }

  void finish_reduce(bool stay) override {
    stay = stay && elsewhere_ && context_.stored_grads.empty();
    if (stay) {
      for (std::size_t i = 0; i < layouts_.size(); ++i)
        sums_.push_back(alone_ ? buffers_[i].narrow(0, 0, layouts_[i].rows()) : targets_[i]);
    }
    if (alone_) {
      if (!in_place_ && !stay) take_own();
    } else {
      work_->wait();
      work_.reset();
      for (std::size_t i = 0; i < layouts_.size() && !stay; ++i) {
        if (!shards_[i].get().is_same(targets_[i])) take(i, targets_[i]);
      }
    }
    targets_.clear();
    slots_.clear();
    if (!in_place_) buffers_.clear();
  }
  void wait_for_transfers() override {
    for (const auto& transfer : transfers_) transfer->wait();
    transfers_.clear();
    sums_.clear();
  }
  void set_state_after_replay(bool open) override {
    if (open && !in_place_) throw std::logic_error("gradients that add up lie in one place");
    slots_.clear();
    if (!in_place_) buffers_.clear();
    if (!open) return;
    begin();
    for (auto& slot : slots_) slot.written = true;
  }
  at::Tensor shard(std::size_t param) override { return shards_[param].get(); }
  at::Tensor device_sum(std::size_t param) override { return sums_.empty() ? shard(param) : sums_[param]; }
  /// Blocks if the shard is in a store, whose memory may be released afterwards.
  std::unique_ptr<Transfer> send(std::size_t param, const at::Tensor& sum) override {
    if (context_.stored_grads.empty() && elsewhere_) return context_.ops.start_transfer(shard(param), sum);
    context_.stored_grads.empty() ? static_cast<void>(shard(param).copy_(sum))
                                  : context_.ops.transfer(shard(param), sum);
    return nullptr;
  }

 private:
  void take(std::size_t param, const at::Tensor& sum) {
    if (auto transfer = send(param, sum)) transfers_.push_back(std::move(transfer));
  }

  void allocate(const std::function<at::Tensor(at::IntArrayRef)>& make) {
    buffers_.resize(layouts_.size());
    for (const auto& group : groups_) {
      const auto buffers = make_buffers(layouts_, group, context_.shard_group.size(), make);
      for (std::size_t n = 0; n < group.size(); ++n) buffers_[group[n]] = buffers[n];
    }
  }

  /// Copies gradients to the shards on a shard axis of one rank.
  void take_own() {
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto own = buffers_[i].narrow(0, 0, layouts_[i].rows());
      if (accumulate_) {
        const auto shard = shards_[i].get();
        shard.add_(own.to(shard.device()));
      } else {
        take(i, own);
      }
    }
  }

  /// The output of the reduce-scatter: the shard itself if it is permanently on the device, else a device tensor.
  at::Tensor target_of(std::size_t i, bool accumulate) const {
    if (!elsewhere_ && context_.stored_grads.empty()) return shards_[i].get();
    auto on_device = at::empty(shards_[i].sizes(), options_.dtype(at::kFloat));
    // Page-locked shards change only by copies on the device's stream, so an asynchronous read is safe.
    if (accumulate && !context_.stored_grads.empty()) {
      context_.ops.transfer(on_device, shards_[i].get());
    } else if (accumulate) {
      on_device.copy_(shards_[i].get(), /*non_blocking=*/true);
    }
    return on_device;
  }

  UnitContext context_;
  std::vector<ParamLayout> layouts_;
  std::vector<std::vector<std::size_t>> groups_;  ///< indices of layouts_ that share one buffer
  at::TensorOptions options_;
  at::ScalarType shard_dtype_;
  bool shards_on_host_;
  bool elsewhere_;  ///< shards are on the host, gradients on a device
  bool alone_;
  bool in_place_;  ///< one rank and one dtype: the full gradient is the shard
  bool accumulate_ = false;
  std::vector<StoredTensor> shards_;
  std::vector<std::shared_ptr<void>> locked_;  // page locks of shards on the host
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<at::Tensor> sums_;  // see finish_reduce(stay)
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> targets_;  // outputs of the running reduce-scatter
  std::unique_ptr<Work> work_;
  std::vector<GradSlot> slots_;
};

}  // namespace

std::unique_ptr<Transfer> UnitGrads::send(std::size_t param, const at::Tensor& sum) {
  shard(param).copy_(sum);
  return nullptr;
}

GradMemory::GradMemory(ProcessGroup& group, const Ops& ops, const std::vector<std::size_t>& slot_bytes)
    : group_(group),
      ops_(ops),
      num_slots_(static_cast<int>(slot_bytes.size())),
      slot_bytes_(slot_bytes),
      rounds_(slot_bytes.size(), 0) {
  for (const auto bytes : slot_bytes) {
    offsets_.push_back(rank_bytes_);
    rank_bytes_ += detail::round_up_to_page(bytes);
  }
  const std::size_t ranks = group_.size();
  memory_ = group_.peer_memory(rank_bytes_ * ranks, 2 * ranks * slot_bytes.size());
  if (memory_ == nullptr) throw RuntimeFailure("the ranks of a node could not share memory for gradients");
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  ops_.count_shared_memory(static_cast<std::int64_t>(rank_bytes_));
}
GradMemory::~GradMemory() {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  ops_.count_shared_memory(-static_cast<std::int64_t>(rank_bytes_));
}

std::byte* GradMemory::address(int rank, int slot) const {
  return memory_->data() + to_index(rank) * rank_bytes_ + element(offsets_, slot);
}
SharedCounter& GradMemory::ready(int rank, int slot) { return memory_->counter(rank * num_slots_ + slot); }
SharedCounter& GradMemory::consumed(int rank, int slot) {
  return memory_->counter((group_.size() + rank) * num_slots_ + slot);
}

void GradMemory::begin(int slot) {
  auto& round = element(rounds_, slot);
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) wait_for_counter(group_, consumed(r, slot), round, r, "a gradient reduction");
  }
  ++round;
}
void GradMemory::mark_ready(int slot) { ready(group_.rank(), slot).raise(element(rounds_, slot)); }
void GradMemory::wait_ready(int slot) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) {
      wait_for_counter(group_, ready(r, slot), element(rounds_, slot), r, "a gradient reduction");
    }
  }
}
void GradMemory::mark_consumed(int slot) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) {
      memory_->forget(address(r, slot) - memory_->data(), element(slot_bytes_, slot));
    }
  }
  consumed(group_.rank(), slot).raise(element(rounds_, slot));
}

std::size_t grad_slot_bytes(const std::vector<ParamLayout>& layouts, at::ScalarType dtype, int ranks) {
  std::size_t total = 0;
  for (const auto& layout : layouts) total += detail::buffer_bytes(layout, dtype, ranks);
  return total;
}

std::unique_ptr<UnitGrads> make_shared_unit_grads(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                                  at::ScalarType dtype, std::shared_ptr<GradMemory> memory,
                                                  std::vector<int> slots, std::shared_ptr<std::size_t> next_slot) {
  return std::make_unique<SharedUnitGrads>(context, layouts, dtype, std::move(memory), std::move(slots),
                                           std::move(next_slot));
}

std::unique_ptr<UnitGrads> make_collective_unit_grads(const UnitContext& context,
                                                      const std::vector<ParamLayout>& layouts, at::ScalarType dtype,
                                                      at::ScalarType shard_dtype, bool shards_on_host,
                                                      bool accumulates) {
  return std::make_unique<CollectiveUnitGrads>(context, layouts, dtype, shard_dtype, shards_on_host, accumulates);
}

}  // namespace fsdp
