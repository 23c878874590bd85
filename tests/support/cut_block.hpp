#pragma once
// Reference for blocks of tensors: copies element by element.
#include <cstddef>
#include <span>
#include <vector>

#include "lib/formats/block.hpp"

namespace fsdp::test {

/// Returns the elements of `block` of a row-major tensor of `shape`, in row-major order.
inline std::vector<std::byte> cut_block(std::span<const std::byte> whole, const Shape& shape, const Block& block,
                                        std::size_t element_bytes) {
  std::vector<std::byte> out;
  for (std::int64_t flat = 0; flat < num_elements(block.sizes); ++flat) {
    std::int64_t rest = flat, place = 0, stride = 1;
    for (std::size_t dim = shape.size(); dim-- > 0; rest /= block.sizes[dim], stride *= shape[dim])
      place += (block.offsets[dim] + rest % block.sizes[dim]) * stride;
    const auto element = whole.subspan(static_cast<std::size_t>(place) * element_bytes, element_bytes);
    out.insert(out.end(), element.begin(), element.end());
  }
  return out;
}

}  // namespace fsdp::test
