#pragma once
// Distribution of a parameter's rows over the ranks of the shard axis. Pure arithmetic.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

/// Contiguous slice of dim 0 owned by one rank of the shard axis.
struct ShardRange {
  std::int64_t first_row;    ///< in rows of dim 0
  std::int64_t num_rows;     ///< 0 on trailing ranks when there are fewer rows than ranks
  std::int64_t padded_rows;  ///< rows that collectives send; equal on every rank
};

/// Splits `rows` the way torch.chunk does: ceil(rows / num_shards) each, the last ones fewer.
/// All-gathering padded slices gives num_shards * padded_rows >= rows rows; the tail is zero.
/// Source: torch 2.11 _fsdp_common.py, _chunk_with_empty and _get_dim0_padded_size.
/// \throws RequestError naming the value that is out of bounds
ShardRange shard_range(std::int64_t rows, int num_shards, int rank);

/// One parameter as the engine sees it.
struct ParamLayout {
  std::string name;
  std::vector<std::int64_t> shape;  ///< global; dim 0 is split
  std::int64_t alignment = 1;       ///< rows that layers compute with are a multiple of this
  bool decay = true;
  bool trainable = true;         ///< false: frozen, without gradient and master weights
  bool is_float = false;         ///< gathered and reduced in float32 regardless of the policy
  bool is_byte = false;          ///< quantised codes, gathered as bytes; never trainable
  bool is_fp8 = false;           ///< a matrix that is multiplied in fp8
  bool gathered_in_fp8 = false;  ///< also all-gathered in fp8, see Fp8Rows in unit_params.cpp
  int same_input = 0;            ///< matrices of a unit with equal nonzero numbers are one GEMM; see make_buffers()

  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  std::int64_t row_elements() const;
  std::int64_t elements() const { return rows() * row_elements(); }
  /// Rows that layers compute with: rows() rounded up to the alignment. The extra rows are always zero.
  std::int64_t compute_rows() const { return (rows() + alignment - 1) / alignment * alignment; }
  /// Rows of the gathered buffer, which holds both the padded shards and compute_rows().
  std::int64_t buffer_rows(int num_shards) const;
  /// `shape` with another number of rows.
  std::vector<std::int64_t> shape_with_rows(std::int64_t rows) const;
};

namespace detail {

// Buffers of a unit's parameters and gradients: dtype, size, and which of them share one allocation, so that layers can
// multiply by several matrices with one GEMM.

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

}  // namespace detail

/// Indices of `layouts` by allocation: those that say `same_input`, in their order, where nothing comes between their
/// rows (no padding of shards, no alignment) and they are trained, or frozen, together. Every other one is alone.
/// \param wanted  false: all are
std::vector<std::vector<std::size_t>> side_by_side(const std::vector<ParamLayout>& layouts, int num_shards,
                                                   bool wanted);

/// Buffers [buffer_rows(), ...] of one such group: parts of one tensor that `make` allocates.
std::vector<at::Tensor> make_buffers(const std::vector<ParamLayout>& layouts, const std::vector<std::size_t>& group,
                                     int num_shards, const std::function<at::Tensor(at::IntArrayRef)>& make);

}  // namespace fsdp
