#pragma once
// Steps of more micro-batches than are replayed: each of the others does what the last one does, and adds what that
// adds, the tokens that it holds until the step's end. Internal to lib/planning/memory.
#include "lib/planning/memory/prediction.hpp"

namespace fsdp::detail {

inline constexpr int kMostReplayed = 16;

/// What a GPU's allocator needs for the inputs of `more` micro-batches.
/// \param most, less  replays of kMostReplayed, and of one less
std::int64_t bytes_of_more(const MemoryPrediction& most, const MemoryPrediction& less, int more);
/// `most` becomes the step with `more` micro-batches beside its own; rows_per_step is left to the caller.
void add_micro_batches(MemoryPrediction& most, const MemoryPrediction& less, int more);

}  // namespace fsdp::detail
