#pragma once
// Writes token files in HDF5 as ids arrive, in bounded memory. The file appears under its name when it is complete;
// until then it is a hidden sibling, which the destructor removes.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "lib/token_files/token_file.hpp"

namespace fsdp {

class TokenFileWriter {
 public:
  TokenFileWriter() = default;
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  virtual ~TokenFileWriter() = default;

  /// Adds one document; empty documents are kept.
  /// \param ids   each in [0, vocab_size)
  /// \param mask  1 for each id that counts as a target, else 0; required when the notes say `masked`, else empty
  /// \throws IoError when the file cannot be written; std::invalid_argument
  virtual void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask = {}) = 0;

  /// Completes the file and gives it its name, replacing an old one.
  /// \param stop_wanted  polled while rows are written
  /// \return false when stop_wanted returned true; no file was written
  /// \throws IoError; FormatError when the ids do not fill one row
  virtual bool finish(const std::function<bool()>& stop_wanted = {}) = 0;

  /// Rows of packed documents that were written; 0 for other files.
  virtual std::int64_t document_rows() const { return 0; }
};

/// Checks, before there are ids, that a token file may be written there.
/// \throws RequestError for a directory; UsageError for a device, a pipe or a socket; IoError without a folder for it
void check_token_output(const std::filesystem::path& file);

/// Writes packed rows: dataset `input_ids` [rows, row_length], contiguous, rows = floor(ids / (row_length + 1)), filled
/// from the first id on without gaps; the ids after the last row are left out. Attribute `seq_len` is row_length. The
/// number of rows is known only at the end, so the ids wait in a nameless file beside the output; the file system needs
/// room for both.
/// \throws RequestError when row_length < 2 or vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_packed_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                   const TokenFileNotes& notes);

/// Number of rows that `num_ids` ids fill.
constexpr std::int64_t packed_rows(std::int64_t num_ids, std::int64_t row_length) { return num_ids / (row_length + 1); }

/// Writes a stream as rows of which each begins with the last id of the row before, so that every id but the first is
/// predicted once: dataset `input_ids` [rows, row_length], rows = overlapping_rows(ids, row_length). Ids that fill no
/// row are left out; fewer than row_length ids in all are one shorter row. Attributes `seq_len` (ids of a row),
/// `row_overlap` 1, `ids_left_out`. As write_packed_rows() otherwise; finish() throws FormatError for fewer than 2 ids.
std::unique_ptr<TokenFileWriter> write_overlapping_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                        const TokenFileNotes& notes);

/// Number of such rows that `num_ids` ids fill, the shorter one of few ids included.
constexpr std::int64_t overlapping_rows(std::int64_t num_ids, std::int64_t row_length) {
  return num_ids < row_length ? 1 : (num_ids - 1) / (row_length - 1);
}

/// Writes documents: datasets `tokens` and `offsets`, both chunked (see hdf5_token_file.cpp).
/// \throws RequestError when vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_token_documents(const std::filesystem::path& file, const TokenFileNotes& notes);

/// Layout of packed documents: rows as RowPacking fills and orders them for the first epoch of a run with this seed.
struct PackedDocumentsLayout {
  std::int64_t seq_len = 0;  ///< most tokens of a row, and most ids of a document
  std::uint64_t seed = 0;
};

/// Writes documents grouped by row, row after row, with dataset `row_offsets` int64 [rows + 1] (row r is documents
/// [row_offsets[r], row_offsets[r + 1])) and attribute `seq_len`. A document of n ids takes n - 1 tokens of its row,
/// its inputs; documents of fewer than 2 ids are left out. add() takes at most seq_len ids at once and keeps them in a
/// nameless file beside the output (4 bytes an id); the file system needs room for both.
/// \throws RequestError when seq_len < 2 or vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_packed_documents(const std::filesystem::path& file,
                                                        const PackedDocumentsLayout& layout,
                                                        const TokenFileNotes& notes);

}  // namespace fsdp
