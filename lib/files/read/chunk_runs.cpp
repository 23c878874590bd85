#include "lib/files/read/chunk_runs.hpp"

namespace fsdp {

ChunkRuns::ChunkRuns(const Block& block, const Shape& shape) : block_(block), strides_(shape.size()) {
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) strides_[dim] = stride;
  std::size_t dim = shape.size();
  while (dim > 0) {
    --dim;
    run_length_ *= static_cast<std::uint64_t>(block.sizes[dim]);
    if (block.sizes[dim] != shape[dim]) break;
  }
  num_outer_ = dim;
  for (std::size_t outer = 0; outer < num_outer_; ++outer) num_runs_ *= static_cast<std::uint64_t>(block.sizes[outer]);
}

std::uint64_t ChunkRuns::place(std::uint64_t run) const {
  std::uint64_t at = 0;
  for (std::size_t dim = 0; dim < strides_.size(); ++dim) {
    at += static_cast<std::uint64_t>(block_.offsets[dim]) * static_cast<std::uint64_t>(strides_[dim]);
  }
  for (std::size_t dim = num_outer_; dim-- > 0;) {
    const auto size = static_cast<std::uint64_t>(block_.sizes[dim]);
    at += run % size * static_cast<std::uint64_t>(strides_[dim]);
    run /= size;
  }
  return at;
}

namespace {

/// The first number below `count` for which `holds`, which stays true from then on; `count` when there is none.
template <typename Holds>
std::uint64_t first_that(std::uint64_t count, Holds&& holds) {
  std::uint64_t low = 0, high = count;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

std::uint64_t ChunkRuns::first_reaching(std::uint64_t element) const {
  return first_that(num_runs_, [&](std::uint64_t run) { return place(run) + run_length_ > element; });
}

std::uint64_t ChunkRuns::first_from(std::uint64_t element) const {
  return first_that(num_runs_, [&](std::uint64_t run) { return place(run) >= element; });
}

}  // namespace fsdp
