#pragma once
// Reads the documents of data files one after the other: JSON Lines, CSV, plain text, Parquet.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/documents/data_piece.hpp"
#include "lib/templates/chat/conversation_options.hpp"

namespace fsdp {

// Form of the samples of a data file.

/// Selects the keys or columns of a file that are read.
struct DataSelection {
  DataForm form = DataForm::text;
  std::string field;    ///< key or column of texts or messages; empty: the usual one
  bool judged = false;  ///< `label` is read beside prompt and completion
};

/// Returns the form of the samples of a file, never automatic. A form that `selection` names is taken. Otherwise a
/// named field holds texts; without one the first object of JSON Lines or the columns of Parquet decide: `messages`,
/// else `prompt` and `completion`, else `chosen` and `rejected`, else texts. CSV and plain files hold texts.
/// \throws RequestError when `selection` names another form than texts for CSV or a plain file, and when a file has the
///   keys of several forms; IoError; FormatError
DataForm find_data_form(const std::filesystem::path& file, const DataSelection& selection);

/// The key or column of messages.
inline std::string messages_field(const DataSelection& selection) {
  return selection.field.empty() ? "messages" : selection.field;
}

/// The one form that a sample of these keys has; nothing where they are those of several forms or of none.
std::optional<DataForm> form_of_keys(const std::vector<std::string>& keys);

namespace detail {
/// Returns the keys of the first object of JSON Lines or of a JSON list; none when the first sample is not an object.
std::vector<std::string> first_json_keys(const std::filesystem::path& file);
/// "line 1", "element 1 at byte 2": the place of that sample.
std::string first_json_place(const std::filesystem::path& file);
/// The keys of an object; none for another text. \throws FormatError naming `where`, for values that are too deep
std::vector<std::string> keys_of(const std::string& sample, const std::string& where);
/// "is no JSON, column 9: ...". \param error  of the JSON library
std::string no_json(std::string_view sample, std::string_view error);
/// "line 12" of "FILE: line 12".
std::string place_in_file(const std::string& where);
/// "a text", "a conversation", "a prompt with a completion"
const char* name_with_article(DataForm form);
/// "FILE: line 4 is a conversation, line 1 a text: one form per file"
std::string other_form(const std::string& where, DataForm form, const std::string& first, DataForm of_first);
}  // namespace detail

class Documents {
 public:
  Documents() = default;
  Documents(const Documents&) = delete;
  Documents& operator=(const Documents&) = delete;
  virtual ~Documents() = default;

  /// Replaces `text` by the next document, which may be empty.
  /// \return false at the end
  /// \throws FormatError naming file and line or row of what is malformed; IoError
  virtual bool next(std::string& text) = 0;

  /// Place of the document that next() returned last: "FILE: line 12" (from 1), "FILE: row 12" (from 0), "FILE: element
  /// 12 at byte 3456" of a JSON list.
  virtual std::string where() const = 0;

  /// Bytes of the file that have been read, approximately; for progress.
  virtual std::int64_t bytes_read() const = 0;

  /// Keys or columns of the documents so far that are not read. Of JSON records their reader knows.
  virtual std::vector<std::string> unread() const { return {}; }
};

enum class DataFileKind { json_lines, csv, text, parquet, arrow };

/// Decides by the first bytes (Parquet, Arrow streams), then by the name: .jsonl, .ndjson, .jsonlines, .jl, .json;
/// .csv, .tsv; .parquet; other files are plain text. \throws IoError; FormatError for a file of another format, a
/// compressed file, UTF-16, a file named .parquet that is
///   not Parquet; CSV or a plain text whose first 64 KiB are not UTF-8 or contain a NUL byte; JSON Lines under the name
///   of a plain text
DataFileKind data_file_kind(const std::filesystem::path& file);
/// "JSON Lines", "CSV", "plain text", "Parquet", "Arrow"
const char* name_of(DataFileKind kind);

/// Opens a data file, or a piece of one.
/// - JSON Lines: an object a line with a string or a list of strings, which is joined by spaces; empty lines are
///   skipped. A file that begins with '[' is a list of such objects, which is read one by one.
/// - CSV: RFC 4180 with a header row; fields are split at commas, in .tsv files at tabulators; blank lines are skipped;
///   a cell may hold line ends.
/// - Plain text: the whole file is one document, an empty file none.
/// - Parquet, and Arrow streams (of datasets.save_to_disk): a column of strings or of lists of strings, joined by
///   spaces; read page by page, or batch by batch.
/// A value that is null is an empty document. A UTF-8 byte-order mark at the start is dropped. A line or cell may have
/// up to 1 GiB, a plain text up to half of the memory that this process may use.
/// \param field  key or column; empty: `text`, in Parquet files without that `Moves`
/// \throws FormatError when there is no such column, saying which there are; IoError; RuntimeFailure when a Parquet
/// file cannot be read because the support for it is missing
std::unique_ptr<Documents> open_documents(const DataPiece& piece, const std::string& field);

/// Opens JSON Lines or Parquet whose samples are not plain texts: each sample is the text of a JSON object with the
/// members that `selection` names, and others beside them. The text of a line is returned unchanged, even if it is not
/// JSON.
/// \param selection  its form is no text
/// \throws as open_documents()
std::unique_ptr<Documents> open_records(const DataPiece& piece, const DataSelection& selection);

namespace detail {
std::unique_ptr<Documents> open_json_lines(const DataPiece& piece, const std::string& field);
std::unique_ptr<Documents> open_json_records(const DataPiece& piece);
std::unique_ptr<Documents> open_csv(const std::filesystem::path& file, const std::string& field, char separator);
/// \param most_bytes  of the text, which may be a thousand times as long as a compressed file
std::unique_ptr<Documents> open_plain_text(const std::filesystem::path& file, std::uint64_t most_bytes);
}  // namespace detail

// The documents of several files, or of pieces of files, one after the other.

class DocumentStream {
 public:
  /// \param max_documents  0: all
  /// \throws IoError when a file cannot be opened; FormatError when one is no data file; as find_data_form()
  DocumentStream(std::vector<DataPiece> pieces, DataSelection selection, std::int64_t max_documents);
  DocumentStream(const std::vector<std::filesystem::path>& files, DataSelection selection, std::int64_t max_documents)
      : DocumentStream(std::vector<DataPiece>(files.begin(), files.end()), std::move(selection), max_documents) {}

  /// Reads a text, or the JSON object of a sample of another form. \return false at the end of the last file
  /// \throws as Documents::next, open_documents and open_records
  bool next(std::string& text);
  /// True when a piece begins in the middle of its file.
  bool begins_inside() const {
    return std::any_of(pieces_.begin(), pieces_.end(), [](const auto& piece) { return piece.begin > 0; });
  }
  /// The form of the sample that next() returned last.
  DataForm form() const { return forms_[next_piece_ - 1]; }
  /// True when the samples of some file have this form.
  bool has(DataForm form) const;
  /// True when some file has conversations, or begins with a prompt and a completion, or a preference, of messages.
  bool needs_template() const { return needs_template_; }
  /// Place of the document that next() returned last.
  std::string where() const { return documents_->where(); }
  /// Bytes read so far, out of bytes_total(), the size of all files.
  std::int64_t bytes_read() const;
  std::int64_t bytes_total() const { return bytes_total_; }
  /// Keys and columns that are not read, by file, once next() has returned false.
  const Ignored& ignored() const { return ignored_; }

 private:
  std::vector<DataPiece> pieces_;
  std::vector<std::int64_t> file_bytes_;
  std::vector<DataForm> forms_;  ///< of each piece
  DataSelection selection_;
  bool needs_template_ = false;
  std::int64_t documents_left_;
  std::int64_t bytes_total_ = 0;
  std::int64_t bytes_before_ = 0;  ///< size of the files that are done
  std::size_t next_piece_ = 0;
  std::unique_ptr<Documents> documents_;
  Ignored ignored_;
};

}  // namespace fsdp
