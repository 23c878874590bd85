#include "lib/engine/fsdp/unit_params.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/products/wide_product.hpp"
#include "lib/compute/ops/updates/companion.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

namespace fsdp {
namespace {

/// Codes of the matrices of a unit that are all-gathered in fp8: half of the bytes of a 16-bit gather, and no casts
/// inside micro-batches. The ranks agree on the largest absolute value of each matrix, so that the codes equal those of
/// the whole matrix bit for bit. As torchao's enable_fsdp_float8_all_gather, but made from rows in param_dtype.
class Fp8Rows {
 public:
  /// \param layouts  of the unit's parameters
  Fp8Rows(const UnitContext& context, const std::vector<ParamLayout>& layouts);
  bool has(std::size_t param) const { return is_there_[param]; }
  bool has_any() const { return std::find(is_there_.begin(), is_there_.end(), true) != is_there_.end(); }
  /// The codes of this rank's rows, e4m3 [padded_rows, columns], of the last update; zeros before.
  const at::Tensor& rows(std::size_t param) const { return rows_[param]; }
  /// The gathered buffer with its scale attached, as GEMMs expect it.
  at::Tensor with_scale(std::size_t param, const at::Tensor& gathered) const;
  /// Makes codes from this rank's shards. Collective. \param own  by parameter; equal in both calls
  void begin_update(const std::vector<at::Tensor>& own);
  void finish_update(const std::vector<at::Tensor>& own);

 private:
  const UnitContext& context_;
  std::vector<bool> is_there_;
  std::vector<at::Tensor> rows_, inverses_;
  std::vector<TensorGather> largest_;  ///< largest absolute values; exchange in progress
  std::unique_ptr<Work> work_;
};

Fp8Rows::Fp8Rows(const UnitContext& context, const std::vector<ParamLayout>& layouts)
    : context_(context), rows_(layouts.size()), inverses_(layouts.size()) {
  const auto& group = context.shard_group;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& layout = layouts[i];
    is_there_.push_back(layout.gathered_in_fp8 && group.size() > 1);
    if (!is_there_.back()) continue;
    const auto rows = shard_range(layout.rows(), group.size(), group.rank()).padded_rows;
    const auto floats = at::TensorOptions(at::kFloat).device(context.ops.device());
    rows_[i] = at::zeros(layout.shape_with_rows(rows), floats.dtype(at::kByte)).view(fp8_type(Fp8Format::e4m3));
    inverses_[i] = at::zeros({1}, floats);
  }
}

at::Tensor Fp8Rows::with_scale(std::size_t param, const at::Tensor& gathered) const {
  return with_companion(gathered, inverses_[param]);
}

void Fp8Rows::begin_update(const std::vector<at::Tensor>& own) {
  const MemoryScope scope(MemoryCategory::workspace);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!has(i)) continue;
    const auto local_largest = context_.ops.fp8_largest(own[i]);
    largest_.push_back(
        {local_largest, at::empty({context_.shard_group.size() * local_largest.numel()}, local_largest.options())});
  }
  if (!largest_.empty()) work_ = context_.collectives.all_gather(largest_);
}

void Fp8Rows::finish_update(const std::vector<at::Tensor>& own) {
  const MemoryScope scope(MemoryCategory::workspace);
  if (work_ != nullptr) work_->wait();
  work_.reset();
  for (std::size_t i = 0, n = 0; i < own.size(); ++i) {
    if (!has(i)) continue;
    static_cast<void>(context_.ops.fp8_cast(own[i], largest_[n++].full, Fp8Format::e4m3, Fp8Sides::rows,
                                            {rows_[i], {}, inverses_[i]}));
  }
  largest_.clear();
}

/// True for a 16-bit matrix that every GEMM would otherwise have to convert to float32.
bool has_wide_copy(const UnitContext& context, const ParamLayout& layout, at::ScalarType dtype) {
  return context.wide_weights && layout.shape.size() == 2 && !layout.is_fp8 &&
         c10::elementSize(detail::type_of(layout, dtype)) == 2;
}

class SharedUnitParams final : public UnitParams {
 public:
  SharedUnitParams(const UnitContext& context, const std::vector<ParamLayout>& layouts, at::ScalarType dtype,
                   std::unique_ptr<PeerMemory> memory, std::string name)

      : group_(context.shard_group),
        ops_(context.ops),
        memory_(std::move(memory)),
        name_("the gather of " + std::move(name)) {
    std::size_t offset = 0;
    for (const auto& layout : layouts) {
      const auto rows = layout.buffer_rows(group_.size());
      auto buffer =
          ops_.tensor_at(memory_->data() + offset, layout.shape_with_rows(rows), detail::type_of(layout, dtype));
      const auto range = shard_range(layout.rows(), group_.size(), group_.rank());
      own_.push_back(buffer.narrow(0, range.padded_rows * group_.rank(), range.padded_rows));
      count(own_.back(), offset);
      offset += detail::buffer_bytes(layout, dtype, group_.size());
      if (has_wide_copy(context, layout, dtype)) {
        const auto wide = ops_.tensor_at(memory_->data() + offset, layout.shape_with_rows(rows), at::kFloat);
        wide_own_.push_back({own_.size() - 1, wide.narrow(0, range.padded_rows * group_.rank(), range.padded_rows)});
        count(wide_own_.back().second, offset);
        offset += detail::buffer_bytes(layout, at::kFloat, group_.size());
        buffer = with_wide_copy(buffer, wide);
      }
      full_.push_back(buffer.narrow(0, 0, layout.compute_rows()));
    }
    ops_.count_shared_memory(counted_bytes_);
  }
  SharedUnitParams(const SharedUnitParams&) = delete;
  SharedUnitParams& operator=(const SharedUnitParams&) = delete;
  ~SharedUnitParams() override { ops_.count_shared_memory(-counted_bytes_); }

  static std::size_t bytes_needed(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                  at::ScalarType dtype) {
    const int ranks = context.shard_group.size();
    std::size_t total = 0;
    for (const auto& layout : layouts) {
      total += detail::buffer_bytes(layout, dtype, ranks);
      if (has_wide_copy(context, layout, dtype)) total += detail::buffer_bytes(layout, at::kFloat, ranks);
    }
    return total;
  }

  StoredTensor local_shard(std::size_t param) override { return own_[param]; }
  at::ScalarType gathered_type(std::size_t param) const override { return own_[param].scalar_type(); }
  void finish_sync() override {
    for (const auto& [param, wide] : wide_own_) wide.copy_(own_[param]);
    ++version_;
    memory_->counter(to_index(group_.rank())).raise(version_);
  }
  void unshard() override {}
  void wait_for_unshard() override {
    for (int r = 0; r < group_.size(); ++r) {
      if (r != group_.rank()) wait_for_counter(group_, memory_->counter(to_index(r)), version_, r, name_);
    }
  }
  at::Tensor full(std::size_t param) override { return full_[param]; }
  void reshard() override {
    for (const auto& [offset, bytes] : others_) memory_->forget(offset, bytes);
  }

 private:
  /// Counts this rank's rows of the buffer at `offset` of the shared segment as its memory; other ranks count theirs.
  void count(const at::Tensor& own, std::size_t offset) {
    counted_bytes_ += static_cast<std::int64_t>(own.nbytes());
    const std::size_t own_bytes = own.nbytes();
    const auto before = own_bytes * to_index(group_.rank());
    const auto all = own_bytes * group_.size();
    others_.push_back({offset, before});
    others_.push_back({offset + before + own_bytes, all - before - own_bytes});
  }

  ProcessGroup& group_;
  const Ops& ops_;
  std::unique_ptr<PeerMemory> memory_;
  std::string name_;
  std::vector<at::Tensor> own_;
  std::vector<std::pair<std::size_t, at::Tensor>> wide_own_;  // parameter and its rows in float32
  std::vector<at::Tensor> full_;
  std::vector<std::pair<std::size_t, std::size_t>> others_;  // offset and bytes of the other ranks' rows
  std::uint64_t version_ = 0;
  std::int64_t counted_bytes_ = 0;
};

class CollectiveUnitParams final : public UnitParams {
 public:
  CollectiveUnitParams(const UnitContext& context, const std::vector<ParamLayout>& layouts, at::ScalarType dtype)
      : context_(context),
        layouts_(layouts),
        dtype_(dtype),
        groups_(side_by_side(layouts, context.shard_group.size(), context.ops.joins_products())),
        own_(layouts.size()),
        full_(layouts.size()),
        permanent_(layouts.size()),
        wide_(layouts.size()),
        fp8_(context_, layouts_) {
    const int ranks = context_.shard_group.size();
    for (const auto& group : groups_) {
      if (!is_permanent(group.front())) continue;
      // The shard is a part of the whole parameter, or all of it: no second copy.
      const auto buffers = make_buffers(layouts_, group, ranks, [&](at::IntArrayRef sizes) {
        return at::zeros(sizes, options(layouts_[group.front()]));
      });
      for (std::size_t n = 0; n < group.size(); ++n) {
        const auto i = group[n];
        const auto rows = shard_rows(i);
        own_[i] = buffers[n].narrow(0, rows * context_.shard_group.rank(), rows);
        full_[i] = with_wide(i, buffers[n]).narrow(0, 0, layouts_[i].compute_rows());
        permanent_[i] = buffers[n];
      }
    }
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      if (own_[i].defined() || is_stored(i)) continue;
      const auto& layout = layouts_[i];
      const MemoryScope scope(MemoryCategory::parameters, is_elsewhere(i));
      const auto device = is_elsewhere(i) ? context_.ops.host() : context_.ops.device();
      own_[i] = at::zeros(layout.shape_with_rows(shard_rows(i)), options(layout).device(device));
      if (is_elsewhere(i)) locked_.push_back(context_.ops.lock_pages(own_[i]));
    }
  }

  StoredTensor local_shard(std::size_t param) override {
    return is_stored(param) ? context_.stored_params[param] : StoredTensor(own_[param]);
  }
  at::ScalarType gathered_type(std::size_t param) const override {
    return fp8_.has(param) ? fp8_type(Fp8Format::e4m3) : detail::type_of(layouts_[param], dtype_);
  }
  void begin_sync() override { fp8_.begin_update(own_); }
  bool sync_asks_ranks() const override { return fp8_.has_any(); }
  void finish_sync() override {
    upcast(true);
    fp8_.finish_update(own_);
  }

  void unshard() override {
    const MemoryScope scope(MemoryCategory::gathered);
    const int ranks = context_.shard_group.size();
    const auto held = hold_stored();
    std::vector<TensorGather> gathers;
    for (const auto& group : groups_) {
      if (is_whole(group.front())) continue;
      if (is_permanent(group.front())) {
        for (const auto i : group) gathers.push_back({own_[i], permanent_[i].narrow(0, 0, shard_rows(i) * ranks)});
        continue;
      }
      const auto buffers = make_buffers(layouts_, group, ranks, [&](at::IntArrayRef sizes) {
        return at::empty(sizes, options(layouts_[group.front()]).dtype(gathered_type(group.front())));
      });
      for (std::size_t n = 0; n < group.size(); ++n) gather(group[n], buffers[n], gathers);
    }
    if (!gathers.empty()) work_ = context_.collectives.all_gather(gathers);
  }
  void wait_for_unshard() override {
    if (work_ != nullptr) work_->wait();
    work_.reset();
    sent_.clear();
    for (const auto& transfer : transfers_) transfer->wait();
    transfers_.clear();
    upcast(false);
  }
  at::Tensor full(std::size_t param) override { return full_.at(param); }
  void reshard() override {
    for (std::size_t i = 0; i < full_.size(); ++i) {
      if (is_permanent(i)) continue;
      full_[i].reset();
      wide_[i] = {};
    }
  }

 private:
  void gather(std::size_t i, const at::Tensor& buffer, std::vector<TensorGather>& gathers) {
    const auto rows = buffer.size(0), gathered_rows = shard_rows(i) * context_.shard_group.size();
    if (fp8_.has(i)) {
      // Their rows are a multiple of what all ranks have, or the last ranks sent zeros: none is left out.
      full_[i] = fp8_.with_scale(i, buffer).narrow(0, 0, layouts_[i].compute_rows());
      gathers.push_back({fp8_.rows(i).view(at::kByte), buffer.view(at::kByte).narrow(0, 0, gathered_rows)});
      return;
    }
    if (rows > gathered_rows) buffer.narrow(0, gathered_rows, rows - gathered_rows).zero_();
    full_[i] = with_wide(i, buffer).narrow(0, 0, layouts_[i].compute_rows());
    if (is_stored(i) && alone()) return context_.ops.transfer(buffer.narrow(0, 0, gathered_rows), local_shard(i).get());
    if (alone()) {
      if (auto transfer = context_.ops.start_transfer(buffer.narrow(0, 0, gathered_rows), own_[i]))
        transfers_.push_back(std::move(transfer));
      return;
    }
    const auto own = local_shard(i).get();
    sent_.push_back(is_elsewhere(i) || is_stored(i) ? context_.ops.to_device(own) : own);
    gathers.push_back({sent_.back(), buffer.narrow(0, 0, gathered_rows)});
  }

  /// The buffer, with a float32 copy allocated if has_wide_copy().
  at::Tensor with_wide(std::size_t i, const at::Tensor& buffer) {
    if (!has_wide_copy(context_, layouts_[i], dtype_)) return buffer;
    wide_[i] = {buffer, at::empty(buffer.sizes(), buffer.options().dtype(at::kFloat))};
    return with_wide_copy(buffer, wide_[i].wide);
  }
  /// Fills the float32 copies of parameters that are whole, or of those that are gathered.
  void upcast(bool whole) {
    for (std::size_t i = 0; i < wide_.size(); ++i) {
      if (wide_[i].half.defined() && is_whole(i) == whole) wide_[i].wide.copy_(wide_[i].half);
    }
  }

  bool alone() const { return context_.shard_group.size() == 1; }
  /// True when the shard is on the host between all-gathers.
  bool is_elsewhere(std::size_t i) const { return context_.offload_frozen && !layouts_[i].trainable; }
  /// True when the shard is in a store between all-gathers.
  bool is_stored(std::size_t i) const {
    return !context_.stored_params.empty() && context_.stored_params[i].store() != nullptr;
  }
  /// True when this rank's shard is the whole parameter, so that nothing is gathered.
  bool is_whole(std::size_t i) const { return alone() && !is_elsewhere(i) && !is_stored(i); }
  /// True when the full tensor is allocated once.
  bool is_permanent(std::size_t i) const {
    return (alone() || context_.stays_gathered) && !is_elsewhere(i) && !is_stored(i);
  }
  std::int64_t shard_rows(std::size_t i) const {
    return shard_range(layouts_[i].rows(), context_.shard_group.size(), context_.shard_group.rank()).padded_rows;
  }
  /// Keeps this rank's rows in memory while they are copied to the device.
  StoreHold hold_stored() const {
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      if (is_stored(i)) return context_.stored_params[i].hold(Access::read);
    }
    return {};
  }
  at::TensorOptions options(const ParamLayout& layout) const {
    return at::TensorOptions(detail::type_of(layout, dtype_)).device(context_.ops.device());
  }

  UnitContext context_;
  std::vector<ParamLayout> layouts_;
  at::ScalarType dtype_;
  std::vector<std::vector<std::size_t>> groups_;  ///< indices of layouts_ that share one buffer
  std::vector<at::Tensor> own_;
  std::vector<at::Tensor> full_;       ///< by parameter; undefined while sharded
  std::vector<at::Tensor> permanent_;  ///< by parameter: [buffer_rows, ...] where the full tensor is allocated once
  struct WideCopy {
    at::Tensor half, wide;
  };
  std::vector<WideCopy> wide_;    ///< by parameter; empty where there is none
  Fp8Rows fp8_;                   ///< parameters that are gathered in fp8
  std::vector<at::Tensor> sent_;  ///< inputs of the running all-gather
  std::unique_ptr<Work> work_;
  std::vector<std::shared_ptr<void>> locked_;  ///< page locks of shards on the host
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

}  // namespace

std::unique_ptr<UnitParams> make_unit_params(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                             at::ScalarType dtype, const std::string& unit_name) {
  if (context.use_peer_memory) {
    auto memory = context.shard_group.peer_memory(SharedUnitParams::bytes_needed(context, layouts, dtype),
                                                  static_cast<std::size_t>(context.shard_group.size()));
    if (memory == nullptr) throw RuntimeFailure("the ranks of a node could not share memory for " + unit_name);
    return std::make_unique<SharedUnitParams>(context, layouts, dtype, std::move(memory), unit_name);
  }
  return std::make_unique<CollectiveUnitParams>(context, layouts, dtype);
}

}  // namespace fsdp
