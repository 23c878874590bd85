#pragma once
// The rows of a round of evaluation, dealt out to the ranks.
#include <cstdint>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// This rank's rows of the round of `count` rows that begins at `first`. The last round is dealt out evenly, so that no
/// rank computes a whole micro-batch while the others have nothing.
std::vector<std::int64_t> rows_of_rank(const DataRanks& ranks, std::int64_t first, std::int64_t count);

/// The rows or documents of the file that a micro-batch of these rows holds, in the order of its sequences.
std::vector<std::int64_t> records_in(const TokenLoader& reader, const std::vector<std::int64_t>& rows);

}  // namespace fsdp
