#pragma once
// The documents of several files, one after the other.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/text/sources/documents.hpp"

namespace fsdp {

class DocumentStream {
 public:
  /// \param max_documents  0: all
  /// \throws IoError when a file cannot be opened; FormatError when one is no data file; as find_data_form()
  DocumentStream(std::vector<std::filesystem::path> files, DataSelection selection, std::int64_t max_documents);

  /// A text, or the JSON object of a sample of another form. \return false at the end of the last file.
  /// \throws as Documents::next, open_documents and open_records
  bool next(std::string& text);
  /// The form of the sample that next() returned last.
  DataForm form() const { return forms_[next_file_ - 1]; }
  /// Some file's samples are of this form.
  bool has(DataForm form) const;
  /// Where the document that next() gave last stands.
  std::string where() const { return documents_->where(); }
  /// Bytes read so far, of bytes_total(), the size of all files.
  std::int64_t bytes_read() const;
  std::int64_t bytes_total() const { return bytes_total_; }

 private:
  std::vector<std::filesystem::path> files_;
  std::vector<std::int64_t> file_bytes_;
  std::vector<DataForm> forms_;  ///< of each file
  DataSelection selection_;
  std::int64_t documents_left_;
  std::int64_t bytes_total_ = 0;
  std::int64_t bytes_before_ = 0;  ///< of the files that are done
  std::size_t next_file_ = 0;
  std::unique_ptr<Documents> documents_;
};

}  // namespace fsdp
