#pragma once
// Where the rows of a parameter live. Pure arithmetic.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

/// Contiguous slice of dim 0 owned by one rank of the shard axis.
struct ShardRange {
  std::int64_t first_row;    ///< in rows of dim 0
  std::int64_t num_rows;     ///< 0 on trailing ranks when there are fewer rows than ranks
  std::int64_t padded_rows;  ///< equal on every rank: what collectives move
};

/// Splits `rows` the way torch.chunk does: ceil(rows / num_shards) each, the last ones fewer.
/// All-gathering padded slices gives num_shards * padded_rows >= rows rows; the tail is zero.
/// Source: torch 2.11 _fsdp_common.py, _chunk_with_empty and _get_dim0_padded_size.
/// \throws UsageError naming the value that is out of bounds
ShardRange shard_range(std::int64_t rows, int num_shards, int rank);

/// One parameter as the engine sees it.
struct ParamLayout {
  std::string name;
  std::vector<std::int64_t> shape;  ///< global; dim 0 is split
  std::int64_t alignment = 1;       ///< rows that layers compute with are a multiple of this
  bool decay = true;
  bool trainable = true;        ///< false: frozen, without gradient and master weights
  bool is_float = false;        ///< gathered, and its gradient reduced, in float32 whatever the policy says
  bool is_byte = false;         ///< codes, gathered as they are; never trainable
  bool is_fp8 = false;          ///< a matrix that is multiplied in 8 bits
  bool travels_in_fp8 = false;  ///< and is gathered so where gathers travel (unit_params.cpp)
  int same_input = 0;  ///< of a unit, those with the same number, not 0, are multiplied as one; see make_buffers()

  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  std::int64_t row_elements() const;
  std::int64_t elements() const { return rows() * row_elements(); }
  /// Rows layers see: rows() rounded up to the alignment; the excess is zero and stays so.
  std::int64_t compute_rows() const { return (rows() + alignment - 1) / alignment * alignment; }
  /// Rows of the gathered buffer: holds both the padded shards and the rows layers see.
  std::int64_t buffer_rows(int num_shards) const;
  /// `shape` with another number of rows.
  std::vector<std::int64_t> shape_with_rows(std::int64_t rows) const;
};

}  // namespace fsdp
