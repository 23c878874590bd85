#pragma once
// Rectangular blocks of tensors: checks, intersection and copying.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/files/formats/shard_record.hpp"

namespace fsdp {

/// Elements [offsets, offsets + sizes) of some tensor.
struct Block {
  Shape offsets, sizes;
};

/// Same number of dims, nothing negative, nothing past `shape`; no overflow whatever the numbers.
bool block_is_inside(const Block& block, const Shape& shape);

/// The common part of two blocks of one tensor; nothing when it has no elements. A 0-dim block has one.
std::optional<Block> intersect(const Block& a, const Block& b);

/// Copies a strided view (strides in elements, from source[0]) into a row-major array of `sizes`.
/// The caller has checked that every element lies inside `source`.
void copy_strided(const Shape& sizes, const Shape& strides, std::span<const std::byte> source,
                  std::span<std::byte> target, std::size_t element_bytes);

namespace detail {

/// What is wrong when `blocks`, all with elements and inside one region of `num_elements`, do not tile that region.
std::optional<std::string> tiling_problem(std::vector<Block> blocks, std::int64_t num_elements);

}  // namespace detail

}  // namespace fsdp
