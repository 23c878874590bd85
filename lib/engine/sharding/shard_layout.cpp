#include "lib/engine/sharding/shard_layout.hpp"

#include <algorithm>
#include "lib/base/types/error.hpp"

namespace fsdp {

ShardRange shard_range(std::int64_t rows, int num_shards, int rank) {
  if (rows < 1) throw RequestError("a parameter with " + std::to_string(rows) + " rows cannot be sharded");
  if (num_shards < 1) throw RequestError(std::to_string(num_shards) + " shards: at least 1 is needed");
  if (rank < 0 || rank >= num_shards) {
    throw RequestError("rank " + std::to_string(rank) + " not in [0, " + std::to_string(num_shards) + ")");
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

std::vector<std::vector<std::size_t>> side_by_side(const std::vector<ParamLayout>& layouts, int num_shards,
                                                   bool wanted) {
  const auto fits = [&](const ParamLayout& x) { return x.buffer_rows(num_shards) == x.rows(); };
  const auto goes_with = [&](const ParamLayout& a, const ParamLayout& b) {
    return wanted && a.same_input != 0 && a.same_input == b.same_input && fits(a) && fits(b) &&
           a.row_elements() == b.row_elements() && a.trainable == b.trainable && a.is_float == b.is_float &&
           a.is_byte == b.is_byte && a.gathered_in_fp8 == b.gathered_in_fp8;
  };
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& group) { return goes_with(layouts[group.front()], layouts[i]); });
    if (found != groups.end()) {
      found->push_back(i);
    } else {
      groups.push_back({i});
    }
  }
  return groups;
}

std::vector<at::Tensor> make_buffers(const std::vector<ParamLayout>& layouts, const std::vector<std::size_t>& group,
                                     int num_shards, const std::function<at::Tensor(at::IntArrayRef)>& make) {
  const auto& first = layouts[group.front()];
  std::int64_t rows = 0;
  for (const auto i : group) rows += layouts[i].buffer_rows(num_shards);
  const auto all = make(first.shape_with_rows(rows));
  if (group.size() == 1) return {all};
  std::vector<at::Tensor> buffers;
  rows = 0;
  for (const auto i : group) {
    buffers.push_back(all.narrow(0, rows, layouts[i].buffer_rows(num_shards)));
    rows += buffers.back().size(0);
  }
  return buffers;
}

}  // namespace fsdp
