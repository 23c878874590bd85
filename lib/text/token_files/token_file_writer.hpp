#pragma once
// Token files in HDF5, written as the ids come: what is in memory does not grow with the file. The file appears under
// its name when it is complete; until then there is a hidden sibling, which goes when the writer does.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "lib/text/token_files/token_file.hpp"

namespace fsdp {

class TokenFileWriter {
 public:
  TokenFileWriter() = default;
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  virtual ~TokenFileWriter() = default;

  /// Adds one document; an empty one counts among documents, too.
  /// \param ids   each in [0, vocab_size)
  /// \param mask  for each id 1 where it counts as a target, else 0; needed where the notes say `masked`, else left out
  /// \throws IoError when it cannot be written; std::invalid_argument
  virtual void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask = {}) = 0;

  /// Writes what is missing and gives the file its name, replacing an old one.
  /// \param stop_wanted  asked now and then
  /// \return false when it said so: nothing was written
  /// \throws IoError; FormatError when the ids do not fill one row
  virtual bool finish(const std::function<bool()>& stop_wanted = {}) = 0;

  /// Rows of documents that were written; 0 where there are none.
  virtual std::int64_t document_rows() const { return 0; }
};

/// Packed rows: dataset `input_ids` [rows, row_length], contiguous, rows = floor(ids / (row_length + 1)), filled from
/// the first id on without gaps; the ids after that are left out. Attribute `seq_len` is row_length. The number of rows
/// is known at the end only, so the ids wait in a nameless file beside the output, which has to have room for both.
/// \throws UsageError when row_length < 2 or vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_packed_rows(const std::filesystem::path& file, std::int64_t row_length,
                                                   const TokenFileNotes& notes);

/// Rows that `num_ids` ids fill.
constexpr std::int64_t packed_rows(std::int64_t num_ids, std::int64_t row_length) { return num_ids / (row_length + 1); }

/// Documents: datasets `tokens` and `offsets`, both chunked (see hdf5_token_file.cpp).
/// \throws UsageError when vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_token_documents(const std::filesystem::path& file, const TokenFileNotes& notes);

/// Documents that share rows, as RowPacking fills and orders them for the first epoch of a run with this seed.
struct PackedDocumentsLayout {
  std::int64_t seq_len = 0;  ///< tokens that a row holds at most, and ids of a document
  std::uint64_t seed = 0;
};

/// The same with the documents of each row beside each other, row after row, dataset `row_offsets` int64 [rows + 1]
/// (row r is documents [row_offsets[r], row_offsets[r + 1])) and attribute `seq_len`. A document of n ids takes n - 1
/// tokens of its row, those that are inputs; one of fewer than 2 ids is left out. add() keeps the ids in a nameless
/// file beside the output, which has to have room for both (4 bytes an id), and takes no more than seq_len ids at once.
/// \throws UsageError when seq_len < 2 or vocab_size < 1; IoError
std::unique_ptr<TokenFileWriter> write_packed_documents(const std::filesystem::path& file,
                                                        const PackedDocumentsLayout& layout,
                                                        const TokenFileNotes& notes);

}  // namespace fsdp
