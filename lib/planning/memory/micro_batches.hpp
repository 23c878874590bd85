#pragma once
// Extrapolates a step with more micro-batches than are replayed: each further micro-batch repeats the work of the last
// replayed one and keeps as much more memory, its tokens, until the step's end. Internal to lib/planning/memory.
#include "lib/planning/memory/prediction.hpp"

namespace fsdp::detail {

inline constexpr int kMostReplayed = 16;

/// \return bytes that a GPU's allocator needs for the inputs of `more` further micro-batches
/// \param most, less  predictions from replaying kMostReplayed micro-batches, and one fewer
std::int64_t bytes_of_more(const MemoryPrediction& most, const MemoryPrediction& less, int more);
/// Extends `most` by `more` micro-batches; the caller updates rows_per_step.
void add_micro_batches(MemoryPrediction& most, const MemoryPrediction& less, int more);

}  // namespace fsdp::detail
