#include "lib/engine/fsdp/shard_layout.hpp"

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {

ShardRange shard_range(std::int64_t rows, int num_shards, int rank) {
  if (rows < 1) throw UsageError("a parameter with " + std::to_string(rows) + " rows cannot be sharded");
  if (num_shards < 1) throw UsageError(std::to_string(num_shards) + " shards: at least 1 is needed");
  if (rank < 0 || rank >= num_shards) {
    throw UsageError("rank " + std::to_string(rank) + " not in [0, " + std::to_string(num_shards) + ")");
  }
  const std::int64_t padded = (rows + num_shards - 1) / num_shards;
  const std::int64_t first = std::min(rows, padded * rank);
  return {first, std::min(padded, rows - first), padded};
}

std::int64_t ParamLayout::row_elements() const {
  std::int64_t n = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return n;
}

std::int64_t ParamLayout::buffer_rows(int num_shards) const {
  return std::max(compute_rows(), shard_range(rows(), num_shards, 0).padded_rows * num_shards);
}

std::vector<std::int64_t> ParamLayout::shape_with_rows(std::int64_t rows) const {
  std::vector<std::int64_t> sizes = shape;
  if (sizes.empty()) sizes.push_back(1);
  sizes[0] = rows;
  return sizes;
}

}  // namespace fsdp
