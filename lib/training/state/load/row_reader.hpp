#pragma once
// Parts of a checkpoint's tensors as ATen's, with the checksums of what was read.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/training/state/load/plan_load.hpp"

namespace fsdp::detail {

class RowReader {
 public:
  explicit RowReader(const Source& source) : source_(source) {}

  /// Rows [first_row, first_row + num_rows) of a tensor of `shape`, as they are stored. \pre num_rows > 0
  at::Tensor rows(const TensorOffset& place, Shape shape, std::int64_t first_row, std::int64_t num_rows);
  /// Elements [first, first + count), flat.
  at::Tensor elements(std::size_t tensor, std::int64_t first, std::int64_t count);
  /// Bytes [first, first + count) of a tensor, whatever they are called. \pre whole elements
  at::Tensor bytes(std::size_t tensor, std::int64_t first, std::int64_t count);

  const std::vector<ReadSum>& sums() const { return sums_; }
  const Source& source() const { return source_; }

 private:
  const Source& source_;
  std::vector<ReadSum> sums_;
};

}  // namespace fsdp::detail
