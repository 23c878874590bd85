#pragma once
// Buffers of a unit's parameters and gradients: dtype, size, and which of them share one allocation, so that layers can
// multiply by several matrices with one GEMM.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "lib/engine/fsdp/shard_layout.hpp"

namespace fsdp::detail {

/// Buffers in shared memory take whole pages, so that each can be unmapped by itself.
inline std::size_t round_up_to_page(std::size_t bytes) {
  constexpr std::size_t kPage_bytes = 4096;
  return (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes;
}

/// Dtype of a parameter's gathered rows. \param dtype  EnginePolicy's param_dtype
inline c10::ScalarType type_of(const ParamLayout& layout, c10::ScalarType dtype) {
  if (layout.is_byte) return c10::ScalarType::Byte;
  return layout.is_float ? c10::ScalarType::Float : dtype;
}

/// Bytes of a buffer of buffer_rows() rows, rounded up to pages.
inline std::size_t buffer_bytes(const ParamLayout& layout, c10::ScalarType dtype, int num_shards) {
  const auto elements = static_cast<std::size_t>(layout.buffer_rows(num_shards) * layout.row_elements());
  return round_up_to_page(elements * c10::elementSize(type_of(layout, dtype)));
}

}  // namespace fsdp::detail

namespace fsdp {

/// Indices of `layouts` by allocation: those that say `same_input`, in their order, where nothing comes between their
/// rows (no padding of shards, no alignment) and they are trained, or frozen, together. Every other one is alone.
/// \param wanted  false: all are
std::vector<std::vector<std::size_t>> side_by_side(const std::vector<ParamLayout>& layouts, int num_shards,
                                                   bool wanted);

/// Buffers [buffer_rows(), ...] of one such group: parts of one tensor that `make` allocates.
std::vector<at::Tensor> make_buffers(const std::vector<ParamLayout>& layouts, const std::vector<std::size_t>& group,
                                     int num_shards, const std::function<at::Tensor(at::IntArrayRef)>& make);

}  // namespace fsdp
