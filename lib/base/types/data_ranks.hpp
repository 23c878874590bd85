#pragma once
// How rows of data are divided over the ranks of a job.
#include <cstdint>
#include <utility>

namespace fsdp {

/// The groups of ranks that rows are divided over, and the place of this rank's group among them. All that readers,
/// plans and evaluations see of ranks: ranks that work on the same rows have the same place.
struct DataRanks {
  int rank = 0;
  int size = 1;

  /// Its share [begin, end) of `count` things, which are dealt out evenly in order.
  std::pair<std::int64_t, std::int64_t> share(std::int64_t count) const {
    return {count * rank / size, count * (rank + 1) / size};
  }
};

}  // namespace fsdp
