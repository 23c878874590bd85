#include "lib/fsdp/unit_grads.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "lib/base/error.hpp"
#include "lib/fsdp/buffer_bytes.hpp"
#include "lib/kernels/kernels.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/tensor/memory_recorder.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

std::vector<at::Tensor> make_shards(const ProcessGroup& group, const std::vector<ParamLayout>& layouts, bool on_host,
                                    at::Device device) {
  const MemoryScope scope(MemoryCategory::gradients, on_host);
  if (on_host) device = host_device();
  std::vector<at::Tensor> shards;
  for (const auto& layout : layouts) {
    const auto range = shard_range(layout.rows(), group.size(), group.rank());
    shards.push_back(
        at::zeros(layout.shape_with_rows(range.padded_rows), at::TensorOptions(at::kFloat).device(device)));
  }
  return shards;
}

class SharedUnitGrads final : public UnitGrads {
 public:
  SharedUnitGrads(const UnitContext& context, std::vector<ParamLayout> layouts, at::ScalarType dtype,
                  std::shared_ptr<GradMemory> memory, std::vector<int> slots, std::shared_ptr<std::size_t> next_slot)
      : group_(context.shard_group),
        layouts_(std::move(layouts)),
        dtype_(dtype),
        memory_(std::move(memory)),
        my_slots_(std::move(slots)),
        next_slot_(std::move(next_slot)) {
    for (const int slot : my_slots_) views_.push_back(make_views(slot));
    // Alone and in float32 the full gradient is the shard: no second copy.
    in_place_ = group_.size() == 1 && dtype_ == at::kFloat && my_slots_.size() == 1;
  }

  void prepare() override {
    if (!shards_.empty()) return;
    if (!in_place_) {
      shards_ = make_shards(group_, layouts_, true, host_device());
      return;
    }
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      shards_.push_back(views_[0][i].grad.narrow(0, 0, layouts_[i].rows()));
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
    for (auto& view : views_[which_]) view.finish();
    memory_->mark_ready(my_slots_[which_]);
  }

  void finish_reduce() override {
    const int slot = my_slots_[which_];
    memory_->wait_ready(slot);
    if (!in_place_) sum(slot);
    memory_->mark_consumed(slot);
    open_ = false;
  }
  at::Tensor shard(std::size_t param) override { return shards_[param]; }

 private:
  std::vector<GradSlot> make_views(int slot) const {
    std::vector<GradSlot> views;
    std::size_t offset = 0;
    for (const auto& layout : layouts_) {
      auto buffer = tensor_at(memory_->address(group_.rank(), slot) + offset,
                              layout.shape_with_rows(layout.buffer_rows(group_.size())), dtype_);
      views.push_back({buffer.narrow(0, 0, layout.compute_rows()), false});
      offset += detail::buffer_bytes(layout, dtype_, group_.size());
    }
    return views;
  }
  void sum(int slot) {
    std::size_t offset = 0;
    std::vector<const void*> sources(static_cast<std::size_t>(group_.size()));
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto& layout = layouts_[i];
      const auto range = shard_range(layout.rows(), group_.size(), group_.rank());
      const auto skip = static_cast<std::size_t>(range.first_row * layout.row_elements()) * c10::elementSize(dtype_);
      for (int r = 0; r < group_.size(); ++r) {
        sources[static_cast<std::size_t>(r)] = memory_->address(r, slot) + offset + skip;
      }
      if (simulating()) return;
      auto* out = shards_[i].data_ptr<float>();
      at::parallel_for(0, range.num_rows * layout.row_elements(), 65536, [&](std::int64_t b, std::int64_t e) {
        kernels::table().sum_sources(kernel_type(dtype_), out, sources.data(), group_.size(), accumulate_, b, e);
      });
      offset += detail::buffer_bytes(layout, dtype_, group_.size());
    }
  }

  ProcessGroup& group_;
  std::vector<ParamLayout> layouts_;
  at::ScalarType dtype_;
  std::shared_ptr<GradMemory> memory_;
  std::vector<int> my_slots_;
  std::shared_ptr<std::size_t> next_slot_;
  std::vector<std::vector<GradSlot>> views_;  // [slot][param]
  std::vector<at::Tensor> shards_;
  std::size_t which_ = 0;
  bool open_ = false;
  bool accumulate_ = false;
  bool in_place_ = false;
};

class CollectiveUnitGrads final : public UnitGrads {
 public:
  CollectiveUnitGrads(const UnitContext& context, std::vector<ParamLayout> layouts, at::ScalarType dtype,
                      bool shards_on_host)
      : context_(context),
        layouts_(std::move(layouts)),
        options_(at::TensorOptions(dtype).device(context.device)),
        shards_on_host_(shards_on_host) {}

  void prepare() override {
    if (shards_.empty()) shards_ = make_shards(context_.shard_group, layouts_, shards_on_host_, context_.device);
  }

  void begin() override {
    if (!slots_.empty()) return;
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    for (const auto& layout : layouts_) {
      buffers_.push_back(at::empty(layout.shape_with_rows(layout.buffer_rows(context_.shard_group.size())), options_));
      slots_.push_back({buffers_.back().narrow(0, 0, layout.compute_rows()), false});
    }
  }
  std::vector<GradSlot>& slots() override { return slots_; }

  void start_reduce(bool accumulate) override {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].finish();
      // Rows past the parameter travel too and must be numbers; the shards' padding stays zero.
      const auto rows = layouts_[i].compute_rows();
      buffers_[i].narrow(0, rows, buffers_[i].size(0) - rows).zero_();
    }
    const MemoryScope scope(MemoryCategory::reduce_buffers);
    // Under way while the next unit's backward computes; finish_reduce() only waits.
    std::vector<TensorReduce> reduces;
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const auto rows = shards_[i].size(0) * context_.shard_group.size();
      // The shard itself unless it is offloaded.
      targets_.push_back(recorded_on_host(shards_[i]) ? at::empty_like(shards_[i]) : shards_[i].to(options_.device()));
      reduces.push_back({buffers_[i].narrow(0, 0, rows), targets_.back(), accumulate});
    }
    work_ = context_.collectives.reduce_scatter(reduces);
  }

  void finish_reduce() override {
    work_->wait();
    work_.reset();
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      if (targets_[i].unsafeGetTensorImpl() != shards_[i].unsafeGetTensorImpl()) shards_[i].copy_(targets_[i]);
    }
    targets_.clear();
    slots_.clear();
    buffers_.clear();
  }
  at::Tensor shard(std::size_t param) override { return shards_[param]; }

 private:
  UnitContext context_;
  std::vector<ParamLayout> layouts_;
  at::TensorOptions options_;
  bool shards_on_host_;
  std::vector<at::Tensor> shards_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> targets_;  // of the reduction under way
  std::unique_ptr<Work> work_;
  std::vector<GradSlot> slots_;
};

}  // namespace

GradMemory::GradMemory(ProcessGroup& group, const std::vector<std::size_t>& slot_bytes)
    : group_(group),
      num_slots_(static_cast<int>(slot_bytes.size())),
      slot_bytes_(slot_bytes),
      rounds_(slot_bytes.size(), 0) {
  for (const auto bytes : slot_bytes) {
    offsets_.push_back(rank_bytes_);
    rank_bytes_ += detail::round_up_to_page(bytes);
  }
  const auto ranks = static_cast<std::size_t>(group_.size());
  memory_ = group_.peer_memory(rank_bytes_ * ranks, 2 * ranks * slot_bytes.size());
  if (memory_ == nullptr) throw RuntimeFailure("the ranks of a node could not share memory for gradients");
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  count_external_host_memory(static_cast<std::int64_t>(rank_bytes_));
}
GradMemory::~GradMemory() {
  const MemoryScope scope(MemoryCategory::reduce_buffers);
  count_external_host_memory(-static_cast<std::int64_t>(rank_bytes_));
}

std::byte* GradMemory::address(int rank, int slot) const {
  return memory_->data() + static_cast<std::size_t>(rank) * rank_bytes_ + offsets_[static_cast<std::size_t>(slot)];
}
SharedCounter& GradMemory::ready(int rank, int slot) {
  return memory_->counter(static_cast<std::size_t>(rank * num_slots_ + slot));
}
SharedCounter& GradMemory::consumed(int rank, int slot) {
  return memory_->counter(static_cast<std::size_t>((group_.size() + rank) * num_slots_ + slot));
}

void GradMemory::begin(int slot) {
  auto& round = rounds_[static_cast<std::size_t>(slot)];
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) wait_for_counter(group_, consumed(r, slot), round, r, "a gradient reduction");
  }
  ++round;
}
void GradMemory::mark_ready(int slot) {
  ready(group_.rank(), slot).value.store(rounds_[static_cast<std::size_t>(slot)], std::memory_order_release);
}
void GradMemory::wait_ready(int slot) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) {
      wait_for_counter(group_, ready(r, slot), rounds_[static_cast<std::size_t>(slot)], r, "a gradient reduction");
    }
  }
}
void GradMemory::mark_consumed(int slot) {
  for (int r = 0; r < group_.size(); ++r) {
    if (r != group_.rank()) {
      memory_->forget(static_cast<std::size_t>(address(r, slot) - memory_->data()),
                      slot_bytes_[static_cast<std::size_t>(slot)]);
    }
  }
  consumed(group_.rank(), slot).value.store(rounds_[static_cast<std::size_t>(slot)], std::memory_order_release);
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
                                                      bool shards_on_host) {
  return std::make_unique<CollectiveUnitGrads>(context, layouts, dtype, shards_on_host);
}

}  // namespace fsdp
