#include "lib/engine/fsdp/fp8_rows.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lib/compute/ops/companion.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp::detail {

Fp8Rows::Fp8Rows(const UnitContext& context, const std::vector<ParamLayout>& layouts)
    : context_(context), rows_(layouts.size()), inverses_(layouts.size()) {
  const auto& group = context.shard_group;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& layout = layouts[i];
    is_there_.push_back(layout.travels_in_fp8 && group.size() > 1);
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
    const auto mine = context_.ops.fp8_largest(own[i]);
    largest_.push_back({mine, at::empty({context_.shard_group.size() * mine.numel()}, mine.options())});
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

}  // namespace fsdp::detail
