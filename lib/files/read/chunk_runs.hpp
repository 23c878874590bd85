#pragma once
// Where a block's elements lie in its tensor.
#include <cstdint>

#include "lib/files/formats/block.hpp"

namespace fsdp {

/// A block as runs: pieces that are contiguous both in the block and in the tensor. Run k is elements
/// [k * run_length, (k + 1) * run_length) of the block; places in the tensor ascend with k. Counts are in elements.
class ChunkRuns {
 public:
  /// The block lies inside `shape` and has elements. Both must outlive this.
  ChunkRuns(const Block& block, const Shape& shape);

  std::uint64_t run_length() const { return run_length_; }
  std::uint64_t place(std::uint64_t run) const;
  /// The first run that reaches past `element` of the tensor; one past the last run when there is none.
  std::uint64_t first_reaching(std::uint64_t element) const;
  /// The first run that starts at `element` or later, likewise.
  std::uint64_t first_from(std::uint64_t element) const;

 private:
  const Block& block_;
  std::size_t num_outer_ = 0;  // leading dims that number the runs
  Shape strides_;              // of the tensor
  std::uint64_t run_length_ = 1, num_runs_ = 1;
};

}  // namespace fsdp
