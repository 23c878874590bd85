#include "lib/formats/block.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace fsdp {
namespace {

using Strides = std::vector<std::uint64_t>;

Strides row_major_strides(const Shape& sizes, std::uint64_t unit) {
  Strides strides(sizes.size());
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = unit;
    unit *= static_cast<std::uint64_t>(sizes[dim]);
  }
  return strides;
}

/// Copies a run of `run_bytes` for every index of the leading `num_dims` dims of `sizes`. Strides are in bytes.
struct Runs {
  const Shape& sizes;
  std::size_t num_dims;
  const Strides& source_strides;
  const Strides& target_strides;
  std::size_t run_bytes;

  void copy(const std::byte* source, std::byte* target) const {
    Shape index(num_dims, 0);
    for (;;) {
      std::memcpy(target, source, run_bytes);
      std::size_t dim = num_dims;
      for (;; --dim) {
        if (dim == 0) return;
        source += source_strides[dim - 1];
        target += target_strides[dim - 1];
        if (++index[dim - 1] < sizes[dim - 1]) break;
        source -= source_strides[dim - 1] * static_cast<std::uint64_t>(sizes[dim - 1]);
        target -= target_strides[dim - 1] * static_cast<std::uint64_t>(sizes[dim - 1]);
        index[dim - 1] = 0;
      }
    }
  }
};

bool is_empty(const Shape& sizes) {
  return std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size == 0; });
}

/// True when `a` ends before `b` begins in the last dim, by which unseparated() sorts last.
bool ends_before(const Block& a, const Block& b) {
  return !a.offsets.empty() && a.offsets.back() + a.sizes.back() <= b.offsets.back();
}

}  // namespace

bool block_is_inside(const Block& block, const Shape& shape) {
  if (block.offsets.size() != shape.size() || block.sizes.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const auto offset = block.offsets[dim], size = block.sizes[dim];
    if (offset < 0 || size < 0 || size > shape[dim] || offset > shape[dim] - size) return false;
  }
  return true;
}

std::optional<Block> intersect(const Block& a, const Block& b) {
  Block common{a.offsets, a.sizes};
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const auto begin = std::max(a.offsets[dim], b.offsets[dim]);
    const auto end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (end <= begin) return std::nullopt;
    common.offsets[dim] = begin;
    common.sizes[dim] = end - begin;
  }
  return common;
}

void copy_strided(const Shape& sizes, const Shape& strides, std::span<const std::byte> source,
                  std::span<std::byte> target, std::size_t element_bytes) {
  if (is_empty(sizes)) return;
  std::size_t dim = sizes.size(), run_bytes = element_bytes;
  while (dim > 0 && static_cast<std::uint64_t>(strides[dim - 1]) * element_bytes == run_bytes) {
    run_bytes *= static_cast<std::size_t>(sizes[--dim]);
  }
  Strides source_strides;
  for (const auto stride : strides) source_strides.push_back(static_cast<std::uint64_t>(stride) * element_bytes);
  Runs{sizes, dim, source_strides, row_major_strides(sizes, element_bytes), run_bytes}.copy(source.data(),
                                                                                            target.data());
}

namespace detail {

std::vector<std::span<Block>> unseparated(std::span<Block> blocks) {
  std::vector<std::span<Block>> groups{blocks}, next;
  const std::size_t num_dims = blocks.empty() ? 0 : blocks[0].offsets.size();
  // Twice: in columns that are cut at different rows, the cuts between rows show when the columns are apart.
  for (std::size_t turn = 0; turn < 2 * num_dims && !groups.empty(); ++turn, std::swap(groups, next)) {
    const auto dim = turn % num_dims;
    next.clear();
    for (const auto group : groups) {
      std::ranges::sort(group, {}, [&](const Block& block) { return block.offsets[dim]; });
      std::size_t first = 0;
      std::int64_t end = 0;
      for (std::size_t i = 0; i <= group.size(); ++i) {
        if (i == group.size() || group[i].offsets[dim] >= end) {
          if (i - first > 1) next.push_back(group.subspan(first, i - first));
          first = i;
        }
        if (i < group.size()) end = std::max(end, group[i].offsets[dim] + group[i].sizes[dim]);
      }
    }
  }
  return groups;
}

std::optional<std::string> tiling_problem(std::vector<Block> blocks, std::int64_t num_elements) {
  for (const auto group : unseparated(blocks)) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t k = i + 1; k < group.size() && !ends_before(group[i], group[k]); ++k) {
        if (intersect(group[i], group[k])) return "two of its chunks overlap";
      }
    }
  }
  std::int64_t covered = 0;  // cannot overflow, because nothing overlaps
  for (const auto& block : blocks) covered += fsdp::num_elements(block.sizes);
  if (covered == num_elements) return std::nullopt;
  return "its chunks hold " + std::to_string(covered) + " of the " + std::to_string(num_elements) + " elements wanted";
}

}  // namespace detail

}  // namespace fsdp
