#pragma once
// Token ids in a column of a Parquet file or an Arrow stream, as libfsdp_parquet.so gives them; see parquet_column.hpp.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::detail {

/// Columns of samples that are read as texts, where no column of ids is meant.
inline constexpr std::array kTextColumns{"text", "Moves", "messages", "conversations", "prompt", "instruction"};

/// A column of lists of whole numbers, read by row in any order. A file is a sequence of blocks: record batches of an
/// Arrow stream, which lie in mapped memory, or row groups of Parquet, which are decoded and of which the last ones are
/// kept, up to 256 MB. Any number of threads may read. No exception crosses this interface.
class IdColumn {
 public:
  virtual ~IdColumn() = default;
  virtual std::int64_t num_blocks() const noexcept = 0;
  virtual std::int64_t block_rows(std::int64_t block) const noexcept = 0;
  /// Ids of each row, where the type of the column says so; else 0.
  virtual std::int64_t row_length() const noexcept = 0;
  /// True when labels stand beside the ids: those of -100 are no targets, as in PyTorch.
  virtual bool has_labels() const noexcept = 0;
  /// Bytes of ids of the largest block that is decoded as a whole; 0: none is.
  virtual std::int64_t largest_block_bytes() const noexcept = 0;

  /// Replaces `lengths` by the number of ids of each row of a block; of a row that is null, 0.
  /// \return false when it failed, as the other functions
  virtual bool lengths(std::int64_t block, std::vector<std::int64_t>* lengths, std::string* failure) noexcept = 0;
  /// Reads the first `count` ids of a row. \param row  in the block
  virtual bool read(std::int64_t block, std::int64_t row, std::int32_t* ids, std::int64_t count,
                    std::string* failure) noexcept = 0;
  /// Reads which of the first `count` ids of a row are targets: 1 or 0.
  virtual bool read_mask(std::int64_t block, std::int64_t row, std::uint8_t* mask, std::int64_t count,
                         std::string* failure) noexcept = 0;
};

/// Opens the column of ids of a file. \param field  its name, where the file has a column of this name; else
/// `input_ids`, or `tokens`. \return null when it failed; `failure` is empty where that is no column of ids, and the
/// file one of texts
using OpenIdsFunction = IdColumn*(const char* file, const char* field, std::string* failure);
inline constexpr const char* kOpenIdsSymbol = "fsdp_open_ids";

}  // namespace fsdp::detail
