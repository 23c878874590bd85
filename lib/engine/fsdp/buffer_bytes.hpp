#pragma once
// Bytes of one parameter's buffer in memory that ranks share: whole pages, so that each can leave a page table alone.
#include <c10/core/ScalarType.h>

#include <cstddef>

#include "lib/engine/fsdp/shard_layout.hpp"

namespace fsdp::detail {

inline std::size_t round_up_to_page(std::size_t bytes) {
  constexpr std::size_t kPage_bytes = 4096;
  return (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes;
}

/// Of a parameter's gathered rows, where the policy says `dtype`.
inline c10::ScalarType type_of(const ParamLayout& layout, c10::ScalarType dtype) {
  if (layout.is_byte) return c10::ScalarType::Byte;
  return layout.is_float ? c10::ScalarType::Float : dtype;
}

/// Room for buffer_rows() rows.
inline std::size_t buffer_bytes(const ParamLayout& layout, c10::ScalarType dtype, int num_shards) {
  const auto elements = static_cast<std::size_t>(layout.buffer_rows(num_shards) * layout.row_elements());
  return round_up_to_page(elements * c10::elementSize(type_of(layout, dtype)));
}

}  // namespace fsdp::detail
