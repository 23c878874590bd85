#include "lib/compute/tensor/sequences.hpp"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace fsdp {

std::vector<Sequence> sequences_of(const MicroBatch& batch) {
  if (batch.packing != nullptr) return batch.packing->documents;
  std::vector<Sequence> sequences;
  for (std::int64_t row = 0; row < batch.rows; ++row) sequences.push_back({row * batch.length, batch.length});
  return sequences;
}

at::Tensor sum_by_sequence(const MicroBatch& batch, const at::Tensor& values_N) {
  if (batch.packing == nullptr && batch.rows > 0)
    return values_N.view({batch.rows, batch.length}).sum(at::IntArrayRef{1}, /*keepdim=*/false, at::kDouble);
  std::vector<at::Tensor> sums;
  for (const auto& [first, length, shared] : sequences_of(batch))
    sums.push_back(values_N.narrow(0, first, length).sum(at::kDouble));
  return sums.empty() ? at::zeros({0}, values_N.options().dtype(at::kDouble)) : at::stack(sums);
}

at::Tensor spread_over_sequences(const MicroBatch& batch, const at::Tensor& values_S) {
  if (batch.packing == nullptr)
    // reshape() alone would give a single row as a view of one number.
    return values_S.to(at::kFloat).unsqueeze(1).expand({batch.rows, batch.length}).reshape({-1}).contiguous();
  auto spread_N = at::zeros({batch.rows * batch.length}, values_S.options().dtype(at::kFloat));
  std::int64_t i = 0;
  for (const auto& [first, length, shared] : sequences_of(batch))
    spread_N.narrow(0, first, length).copy_(values_S.narrow(0, i++, 1).expand({length}));
  return spread_N;
}

}  // namespace fsdp
