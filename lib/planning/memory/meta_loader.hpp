#pragma once
// A data loader without data, for predictions.
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// Yields `num_rows` rows with `tokens` inputs and targets as meta tensors, with documents laid out as in RandomLoader.
class MetaLoader final : public DataLoader {
 public:
  MetaLoader(std::int64_t num_rows, std::int64_t tokens, DocumentLengths documents = {})
      : num_rows_(num_rows), tokens_(tokens), documents_(std::move(documents)) {}
  std::int64_t num_rows() const override { return num_rows_; }
  MicroBatch read(const std::vector<std::int64_t>& rows,
                  const std::vector<std::uint64_t>& sample_keys = {}) const override;

 private:
  std::int64_t num_rows_;
  std::int64_t tokens_;
  DocumentLengths documents_;
};

}  // namespace fsdp
