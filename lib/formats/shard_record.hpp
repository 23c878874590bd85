#pragma once
// A named block of a tensor as plain bytes, which checkpoint formats and the engine exchange. Needs no LibTorch.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lib/base/types/dtype.hpp"

namespace fsdp {

using Shape = std::vector<std::int64_t>;

/// The place of a flattened key in the nested dict that it came from; integers are list positions. PyTorch calls this
/// `planner_data`.
using StatePath = std::vector<std::variant<std::string, std::int64_t>>;

/// Limit on the number of dims of a tensor in a file; PyTorch has the same.
inline constexpr std::size_t kMaxDims = 64;

/// Number of elements of `shape`; 1 for a scalar. \throws FormatError on a negative size or overflow
std::int64_t num_elements(const Shape& shape);
/// The same as a size in memory or in a file.
inline std::uint64_t element_count(const Shape& shape) { return static_cast<std::uint64_t>(num_elements(shape)); }

/// A rectangular block of a tensor: shape `sizes` at `offsets` of a tensor of shape `global_shape`.
/// `data` is row-major, little-endian, contiguous, dtype_size * num_elements(sizes) bytes, not owned.
struct ShardRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape global_shape;
  Shape offsets;
  Shape sizes;
  std::span<const std::byte> data;
};

}  // namespace fsdp
