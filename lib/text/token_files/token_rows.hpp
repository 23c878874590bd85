#pragma once
// Token files: an HDF5 dataset `input_ids` of shape [rows, L], one packed training sample per row; `loss_mask` of the
// same shape may be there.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "lib/text/token_files/hdf5.hpp"
#include "lib/text/token_files/hdf5_storage.hpp"
#include "lib/text/token_files/loss_mask.hpp"

namespace fsdp {

/// Reads rows of token ids on demand; nothing but the shape is held in memory. The ids may be stored as any integer
/// type (uint16 and uint32 are usual). Any number of processes and threads may read the same file.
class TokenRows {
 public:
  /// \throws IoError when the file cannot be opened; FormatError, naming the file, the dataset, what was found and what
  ///         was expected, when it is no HDF5 file, has no `input_ids`, or that has another rank than 2, an element
  ///         type that is no integer, no rows, or rows of fewer than 2 ids (a model predicts the next one)
  explicit TokenRows(const std::filesystem::path& file);

  const std::filesystem::path& file() const { return file_; }
  std::int64_t num_rows() const { return num_rows_; }
  /// L, in ids.
  std::int64_t row_length() const { return row_length_; }

  /// Reads one row.
  /// \param row  in [0, num_rows())
  /// \param out  row_length() ids
  /// \throws FormatError naming file and row when it cannot be read or an id is not in [0, 2^31)
  void read_row(std::int64_t row, std::span<std::int32_t> out) const;

  /// Reads rows in any order, repeats allowed; neighbours that follow each other are read at once.
  /// \param out  [rows.size(), row_length()], row by row
  /// \throws FormatError as read_row
  void read_rows(std::span<const std::int64_t> rows, std::span<std::int32_t> out) const;
  /// Some ids are no targets.
  bool has_loss_mask() const { return loss_mask_.has_value(); }
  /// For each id of a row 1 where it counts as a target; all 1 without a mask.
  /// \param row  in [0, num_rows())
  /// \param out  row_length() numbers
  /// \throws FormatError
  void read_loss_mask(std::int64_t row, std::span<std::uint8_t> out) const;

 private:
  void read_range(std::int64_t first_row, std::int64_t count, std::span<std::int32_t> out) const;

  std::filesystem::path file_;
  Hdf5File handle_;
  Hdf5Dataset dataset_;
  detail::ChunkSizes chunks_;
  std::int64_t num_rows_ = 0;
  std::int64_t row_length_ = 0;
  bool fits_int32_ = false;  ///< every value of the stored type is an id in [0, 2^31)
  std::optional<detail::LossMask> loss_mask_;
};

/// Writes `ids` as a token file of rows of `row_length` ids: to a temporary sibling first, renamed when complete.
/// \param ids  [ids.size() / row_length, row_length], row by row
/// \throws UsageError when ids is empty or no multiple of row_length, or row_length < 2; IoError when it cannot be
///         written
void write_token_rows(const std::filesystem::path& file, std::span<const std::uint16_t> ids, std::int64_t row_length);
void write_token_rows(const std::filesystem::path& file, std::span<const std::uint32_t> ids, std::int64_t row_length);

/// Checks that every id is one the model has an embedding for.
/// \param ids   [rows.size(), L] as read_rows gave them
/// \param rows  the row numbers, for the message
/// \throws FormatError naming file, row, position in the row, id and vocabulary size
void check_token_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::filesystem::path& file,
                     std::span<const std::int64_t> rows);

}  // namespace fsdp
