#include "lib/planning/memory/meta_loader.hpp"

#include <ATen/ops/empty.h>

#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

MicroBatch MetaLoader::read(const std::vector<std::int64_t>& rows,
                            const std::vector<std::uint64_t>& sample_keys) const {
  const MemoryScope scope(MemoryCategory::batch);
  MicroBatch batch;
  batch.rows = static_cast<std::int64_t>(rows.size());
  batch.length = tokens_;
  batch.num_targets = batch.rows * tokens_;
  const auto options = at::TensorOptions(at::kInt).device(at::kMeta);
  batch.ids_N = at::empty({batch.num_targets}, options);
  batch.targets_N = at::empty({batch.num_targets}, options);
  if (!documents_.empty() && batch.rows > 0) {
    auto packing = lay_out_documents(std::vector<DocumentLengths>(rows.size(), documents_), tokens_);
    packing->positions_N = at::empty({batch.num_targets}, options);
    packing->starts = at::empty(packing->starts.sizes(), options);
    batch.packing = std::move(packing);
  }
  set_sample_keys(batch, sample_keys);
  return batch;
}

}  // namespace fsdp
