#pragma once
// Token files of documents: HDF5 datasets `tokens` [total] and `offsets` int64 [documents + 1], document i being
// tokens[offsets[i], offsets[i + 1]). Empty documents are kept. `loss_mask` [total] may be there, and `row_offsets`
// int64 [rows + 1] where documents share rows: row r is documents [row_offsets[r], row_offsets[r + 1]).
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/text/token_files/hdf5.hpp"
#include "lib/text/token_files/hdf5_storage.hpp"
#include "lib/text/token_files/loss_mask.hpp"

namespace fsdp {

/// Reads documents on demand; only the offsets are in memory. Any number of processes and threads may read one file.
class TokenDocuments {
 public:
  /// \throws IoError when the file cannot be opened; FormatError, naming the file, the dataset, what was found and what
  ///         was expected (offsets must start at 0, never fall, and end at the number of tokens)
  explicit TokenDocuments(const std::filesystem::path& file);

  const std::filesystem::path& file() const { return file_; }
  std::int64_t num_documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t num_tokens() const { return offsets_.back(); }
  /// Ids of document i.
  std::int64_t length(std::int64_t i) const {
    return offsets_[static_cast<std::size_t>(i) + 1] - offsets_[static_cast<std::size_t>(i)];
  }
  /// Reads the first out.size() ids of a document.
  /// \param out  at most length(document) ids
  /// \throws FormatError naming file and document when it cannot be read or an id is not in [0, 2^31)
  void read(std::int64_t document, std::span<std::int32_t> out) const;
  /// Rows that documents share; 0: each is by itself.
  std::int64_t num_rows() const {
    return row_offsets_.empty() ? 0 : static_cast<std::int64_t>(row_offsets_.size()) - 1;
  }
  /// First document of a row. \param row  in [0, num_rows()]; the last is the number of documents
  std::int64_t row_begin(std::int64_t row) const { return row_offsets_[static_cast<std::size_t>(row)]; }
  /// Some ids are no targets.
  bool has_loss_mask() const { return loss_mask_.has_value(); }
  /// For each of the first out.size() ids of a document 1 where it counts as a target; all 1 without a mask.
  /// \throws as read()
  void read_loss_mask(std::int64_t document, std::span<std::uint8_t> out) const;

 private:
  void check_part(std::int64_t document, std::size_t size) const;

  std::filesystem::path file_;
  Hdf5File handle_;
  Hdf5Dataset tokens_;
  detail::ChunkSizes chunks_;
  std::vector<std::int64_t> offsets_, row_offsets_;
  bool fits_int32_ = false;  ///< every value of the stored type is an id in [0, 2^31)
  std::optional<detail::LossMask> loss_mask_;
};

/// The contents of a token file, by its datasets.
enum class TokenFileKind { rows, documents };
/// \throws FormatError when it is no HDF5 file or has neither `input_ids` nor `tokens` and `offsets`; IoError
TokenFileKind token_file_kind(const std::filesystem::path& file);
/// True when the file begins with HDF5's signature. \throws IoError when it cannot be read
bool is_hdf5(const std::filesystem::path& file);

}  // namespace fsdp
