#include "lib/text/sources/document_stream.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace fsdp {

DocumentStream::DocumentStream(std::vector<std::filesystem::path> files, DataSelection selection,
                               std::int64_t max_documents)
    : files_(std::move(files)),
      selection_(std::move(selection)),
      documents_left_(max_documents > 0 ? max_documents : std::numeric_limits<std::int64_t>::max()) {
  for (const auto& file : files_) {
    forms_.push_back(find_data_form(file, selection_));  // all of them now, not after hours
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
    const auto& file = files_[next_file_++];
    documents_ = form() == DataForm::text ? open_documents(file, selection_.field)
                                          : open_records(file, {form(), selection_.field});
  }
  --documents_left_;
  return true;
}

bool DocumentStream::has(DataForm form) const { return std::find(forms_.begin(), forms_.end(), form) != forms_.end(); }

std::int64_t DocumentStream::bytes_read() const {
  return bytes_before_ + (documents_ != nullptr ? documents_->bytes_read() : 0);
}

}  // namespace fsdp
