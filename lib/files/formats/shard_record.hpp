#pragma once
// A named block of a tensor as plain bytes, which checkpoint formats and the engine exchange. Needs no LibTorch.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/dtype.hpp"

namespace fsdp {

using Shape = std::vector<std::int64_t>;

/// Limit on the number of dims of a tensor in a file; PyTorch has the same.
inline constexpr std::size_t kMaxDims = 64;

/// Number of elements of `shape`; 1 for a scalar. \throws FormatError on a negative size or overflow
std::int64_t num_elements(const Shape& shape);

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
