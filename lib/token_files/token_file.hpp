#pragma once
// Token files of any format, read on demand. A new format is a reader (a class derived from TokenFile, a function that
// recognises a file and one that opens it: token_file_formats.hpp) and a row of kFormats in token_file.cpp.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/token_files/id_array.hpp"

namespace fsdp {

/// Where the ids of a token file come from, as its writer noted it.
struct TokenFileNotes {
  std::string tokenizer;                 ///< name of the tokenizer
  std::string tokenizer_description;     ///< Tokenizer::description()
  std::int64_t vocab_size = 0;           ///< 0: not noted. Ids are written as uint16 up to 65536, above as uint32
  std::vector<std::string> sources;      ///< files of the texts; written, not read
  std::string chat_template = {};        ///< name of the chat template; empty: the texts are no conversations
  std::string train_on = {};             ///< "answers" or "all"; empty: the texts are no conversations
  bool has_preferences = false;          ///< documents 2 i and 2 i + 1 are the chosen and the rejected side of a pair
  bool judged = false;                   ///< the last id of a document is 1 where its answer is wanted, else 0
  std::string head = {};                 ///< HeadKind of a model with scores, whose one target ends each document
  std::vector<std::string> labels = {};  ///< names of the targets of a classifier
  std::int64_t padding_id = -1;          ///< with a head: ids at the end of texts that were left out; -1: none were
  bool masked = false;                   ///< a loss mask is written beside the ids; written, not read
  bool overlaps = false;                 ///< each row begins with the last id of the row before
  std::int64_t left_out = 0;             ///< ids of the texts that are in no row, where the rows overlap
};

/// An open token file. The records of a file are either rows, packed samples of one length, or documents of any length.
/// Several documents may share a row of the file. Any number of processes and threads may read one file. A file that
/// changes after it was opened is refused when it is read: its reader would return zeros for what is gone, and other
/// ids for what was overwritten.
class TokenFile {
 public:
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  virtual ~TokenFile() = default;

  const std::filesystem::path& file() const { return file_; }
  /// Rows or documents of the file.
  virtual std::int64_t num_records() const = 0;
  /// Ids of each row; 0 when the records are documents.
  virtual std::int64_t row_length() const { return 0; }
  bool has_documents() const { return row_length() == 0; }
  /// Ids of a record. \param record  in [0, num_records())
  virtual std::int64_t length(std::int64_t record) const = 0;

  /// Reads the first out.size() ids of a record.
  /// \param record  in [0, num_records())
  /// \param out     at most length(record) ids
  /// \throws FormatError naming file and record when it cannot be read or an id is not in [0, 2^31), or naming the file
  ///         when it has changed
  virtual void read(std::int64_t record, std::span<std::int32_t> out) const = 0;
  /// Reads whole rows in any order, repeats allowed; those that follow each other in one call. Only for files of rows.
  /// \param out  [rows.size(), row_length()], row by row
  /// \throws FormatError as read()
  void read_rows(std::span<const std::int64_t> rows, std::span<std::int32_t> out) const;

  /// True when some ids are no targets.
  virtual bool has_loss_mask() const { return false; }
  /// For each of the first out.size() ids of a record: 1 where the id counts as a target, else 0; all 1 without a mask.
  /// \throws FormatError naming file and position of a value that is neither 0 nor 1
  virtual void read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const;

  /// Rows of the file that documents share; 0 when each document is by itself.
  virtual std::int64_t num_shared_rows() const { return 0; }
  /// First document of a shared row.
  /// \param row  in [0, num_shared_rows()]; the last value gives num_records()
  virtual std::int64_t shared_row_begin(std::int64_t row) const { return row; }

  /// Notes of the writer; empty and 0 where a note is missing, as in files of other programs.
  virtual TokenFileNotes notes() const { return {}; }
  /// Checks what was not read when the file was opened (TokenFileOptions::checked_later). \throws FormatError
  virtual void check() const {}
  /// Files that the ids come from: file(), and an index beside it.
  virtual std::vector<std::filesystem::path> files() const { return {file_}; }
  /// Sentences for the user about the file: "has bytes after the last sequence".
  virtual std::vector<std::string> remarks() const { return {}; }
  /// Names of data beside the ids that say which ids count in other programs and are not read here, such as labels.
  virtual std::vector<std::string> unread() const { return {}; }

 protected:
  explicit TokenFile(std::filesystem::path file);
  /// Reads rows that follow each other, of which the first and the last are there: one read() for each, unless a format
  /// knows better. \param out  [count, row_length()]
  virtual void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const;
  /// Call after ids or a mask were read. A file that was removed is still the one that was opened, and a file of the
  /// same size and time is taken for a copy.
  /// \throws FormatError when size or time of the file are others than when it was opened
  void check_unchanged() const;
  /// \throws std::out_of_range, std::invalid_argument when a record is not there or has fewer than `size` ids
  void check_part(std::int64_t record, std::size_t size) const;

 private:
  struct Version {
    std::int64_t size_bytes = -1, seconds = 0;
  };
  /// \return the size is -1 when there is no such file
  Version version() const;

  std::filesystem::path file_;
  Version opened_;
};

/// How files are read that do not say it themselves.
struct TokenFileOptions {
  std::int64_t stream_inputs = 0;  ///< a stream without rows is cut into rows of so many inputs; 0: it is one document
  bool documents = false;          ///< files that may be read either way are documents, not a stream
  std::optional<NumberType> raw;   ///< of files that are ids and nothing else
  std::string field;               ///< column of ids in Parquet and Arrow streams; empty: the usual ones
  bool checked_later = false;      ///< the caller calls check(): a large index is not read when its file is opened
};

/// Opens a token file of any format, or a folder of several, in the order of their names.
/// \throws IoError when the file cannot be opened; FormatError, naming the file, what was found and what was expected
std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& file, const TokenFileOptions& options = {});

/// True for a regular file that has the name or the first bytes of a token file, and for a folder whose files are such.
/// A file that only has the name is refused when it is opened, not taken for a text.
/// Parquet and Arrow streams are token files by their column `field`, if they have it, else by `input_ids` or `tokens`.
/// \param field  key or column that was asked for; empty: none was
/// \throws IoError when the file cannot be read
bool is_token_file(const std::filesystem::path& file, const std::string& field = {});

/// The format whose signature these bytes begin with, for a message: "an HDF5 file"; empty when there is none.
std::string_view token_format_of(std::string_view first_bytes);

/// Checks that the model has an embedding for every id.
/// \param ids      [records.size(), L], row by row
/// \param records  the numbers of the records, for the message
/// \throws FormatError naming file, record, position in the record, id and vocabulary size
void check_token_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::filesystem::path& file,
                     std::span<const std::int64_t> records);

}  // namespace fsdp
