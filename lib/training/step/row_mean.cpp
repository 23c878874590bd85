#include "lib/training/step/row_mean.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace fsdp {

double RowMean::weigh(MicroBatch& batch) const {
  batch.weights_N = at::empty(batch.targets_N.sizes(), at::kFloat);
  auto* weights = batch.weights_N.data_ptr<float>();
  std::fill_n(weights, batch.weights_N.numel(), 0.0f);
  double sequences = 0;
  for (const auto& sequence : sequences_of(batch)) {
    const auto* targets = batch.targets_N.const_data_ptr<std::int32_t>() + sequence.first;
    const auto count = std::count_if(targets, targets + sequence.length, [](auto target) { return target >= 0; });
    if (count == 0) continue;
    std::fill_n(weights + sequence.first, sequence.length, 1.0f / static_cast<float>(count));
    sequences += 1;
  }
  return sequences;
}

}  // namespace fsdp
