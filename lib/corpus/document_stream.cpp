#include "lib/corpus/document_stream.hpp"

#include <limits>
#include <utility>

namespace fsdp {

DocumentStream::DocumentStream(std::vector<std::filesystem::path> files, std::string field, std::int64_t max_documents)
    : files_(std::move(files)),
      field_(std::move(field)),
      documents_left_(max_documents > 0 ? max_documents : std::numeric_limits<std::int64_t>::max()) {
  for (const auto& file : files_) {
    data_file_kind(file);  // all of them now, not after hours
    file_bytes_.push_back(static_cast<std::int64_t>(std::filesystem::file_size(file)));
    bytes_total_ += file_bytes_.back();
  }
}

bool DocumentStream::next(std::string& text) {
  if (documents_left_ == 0) return false;
  while (documents_ == nullptr || !documents_->next(text)) {
    if (documents_ != nullptr) bytes_before_ += file_bytes_[next_file_ - 1];
    documents_.reset();
    if (next_file_ == files_.size()) return false;
    documents_ = open_documents(files_[next_file_++], field_);
  }
  --documents_left_;
  return true;
}

std::int64_t DocumentStream::bytes_read() const {
  return bytes_before_ + (documents_ != nullptr ? documents_->bytes_read() : 0);
}

}  // namespace fsdp
