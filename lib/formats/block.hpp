#pragma once
// Rectangular blocks of tensors: checks, intersection and copying.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/formats/shard_record.hpp"

namespace fsdp {

/// Elements [offsets, offsets + sizes) of a tensor.
struct Block {
  Shape offsets, sizes;
};

/// True when the block has as many dims as `shape` and lies inside it. Safe for any numbers: nothing overflows.
bool block_is_inside(const Block& block, const Shape& shape);

/// The intersection of two blocks of one tensor, or nothing when it has no elements. A 0-dim block has one element.
std::optional<Block> intersect(const Block& a, const Block& b);

/// Copies a strided view (strides in elements, from source[0]) into a row-major array of `sizes`.
/// The caller has checked that every element lies inside `source`.
void copy_strided(const Shape& sizes, const Shape& strides, std::span<const std::byte> source,
                  std::span<std::byte> target, std::size_t element_bytes);

namespace detail {

/// Sorts blocks of one tensor and returns the groups of them in which two may overlap: no cut across a dim separates
/// the blocks of a group. Blocks of different groups, or of none, have no elements in common. The parts of a tensor
/// that is sharded over a mesh are all separated, in n log n steps; 0-dim blocks are one group.
/// Every block has elements, and no offset is negative.
std::vector<std::span<Block>> unseparated(std::span<Block> blocks);

/// Says why `blocks` do not tile a region of `num_elements` elements; nothing when they do. Every block has elements
/// and lies inside the region.
std::optional<std::string> tiling_problem(std::vector<Block> blocks, std::int64_t num_elements);

}  // namespace detail

}  // namespace fsdp
