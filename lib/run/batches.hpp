#pragma once
// Micro-batches from token files.
#include <cstdint>
#include <vector>

#include "lib/dataset/data_order.hpp"
#include "lib/dataset/token_rows.hpp"
#include "lib/tensor/stage.hpp"

namespace fsdp {

/// Rows of a token file as inputs and targets: a row of L ids gives n = min(seq_len, L - 1) pairs, inputs row[0:n],
/// targets row[1:n+1].
class BatchReader {
 public:
  /// \throws UsageError when seq_len < 1
  BatchReader(const std::filesystem::path& file, std::int64_t seq_len, std::int64_t vocab_size);

  std::int64_t num_rows() const { return rows_.num_rows(); }
  std::int64_t tokens_per_row() const { return pairs_; }

  /// \param rows         row numbers; none gives a micro-batch without rows
  /// \param sample_keys  one per row for dropout; empty: no dropout
  /// \throws FormatError naming file and row of an id outside the vocabulary
  MicroBatch read(const std::vector<std::int64_t>& rows, const std::vector<std::uint64_t>& sample_keys,
                  at::Device device) const;

 private:
  TokenRows rows_;
  std::int64_t pairs_;
  std::int64_t vocab_size_;
};

/// Dropout key of the sample at a stream position: depends on nothing else.
std::uint64_t sample_key(std::uint64_t seed, std::int64_t position);

/// Targets that count.
std::int64_t count_targets(const MicroBatch& batch);

}  // namespace fsdp
