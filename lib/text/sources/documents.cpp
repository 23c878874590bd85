#include "lib/text/sources/documents.hpp"

#include <algorithm>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/text/chat/messages.hpp"
#include "lib/text/sources/data_files.hpp"
#include "lib/text/sources/parquet_documents.hpp"

namespace fsdp {
namespace {

std::string first_bytes(const std::filesystem::path& file) {
  const auto handle = File::open_read(file);
  std::string bytes(std::min<std::uint64_t>(detail::kHead_bytes, handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// True if the first line of the file is a JSON object with a key, whatever the file's name is.
bool holds_json_lines(const std::filesystem::path& file, std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  const auto brace = head.find_first_not_of(" \t\r\n");
  if (brace == head.npos || head[brace] != '{') return false;
  const auto quote = head.find_first_not_of(" \t", brace + 1);
  if (quote == head.npos || head[quote] != '"') return false;
  return !detail::first_json_keys(file).empty();
}

class PlainText : public Documents {
 public:
  explicit PlainText(const std::filesystem::path& file) : file_(File::open_read(file)) {}

  bool next(std::string& text) override {
    if (done_) return false;
    done_ = true;
    text.resize(file_.size_bytes());
    file_.read_at(0, std::as_writable_bytes(std::span(text)));
    size_ = static_cast<std::int64_t>(text.size());
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    return !text.empty();
  }
  std::string where() const override { return file_.path().string(); }
  std::int64_t bytes_read() const override { return size_; }

 private:
  File file_;
  bool done_ = false;
  std::int64_t size_ = 0;
};

}  // namespace

DataFileKind data_file_kind(const std::filesystem::path& file) {
  using detail::NamedKind;
  const auto head = first_bytes(file);
  if (head.starts_with("PAR1")) return DataFileKind::parquet;
  if (head.starts_with("PARE")) {
    throw FormatError(file.string() + ": is encrypted Parquet, for which no key can be given: decrypt it first");
  }
  detail::refuse_foreign_format(file, head);
  const auto named = detail::kind_by_name(file);
  if (named == NamedKind::parquet) {
    throw FormatError(file.string() + ": is not a Parquet file (it does not begin with PAR1); was it copied whole?");
  }
  if (named == NamedKind::json_lines || named == NamedKind::json) return DataFileKind::json_lines;
  detail::refuse_binary(file, head);
  if (named == NamedKind::csv) return DataFileKind::csv;
  if (holds_json_lines(file, head)) {
    throw FormatError(file.string() +
                      ": would be read as one text, and its first line is a JSON object: give it the suffix .jsonl "
                      "(ln -s will do), and each line is a document");
  }
  return DataFileKind::text;
}

const char* name_of(DataFileKind kind) {
  switch (kind) {
    case DataFileKind::json_lines:
      return "JSON Lines";
    case DataFileKind::csv:
      return "CSV";
    case DataFileKind::parquet:
      return "Parquet";
    default:
      return "plain text";
  }
}

std::unique_ptr<Documents> detail::open_plain_text(const std::filesystem::path& file) {
  return std::make_unique<PlainText>(file);
}

std::unique_ptr<Documents> open_documents(const std::filesystem::path& file, const std::string& field) {
  switch (data_file_kind(file)) {
    case DataFileKind::json_lines:
      return detail::open_json_lines(file, field.empty() ? "text" : field);
    case DataFileKind::csv:
      return detail::open_csv(file, field.empty() ? "text" : field, detail::lower_suffix(file) == ".tsv" ? '\t' : ',');
    case DataFileKind::parquet:
      return open_parquet(file, field);
    default:
      return detail::open_plain_text(file);
  }
}

std::unique_ptr<Documents> open_records(const std::filesystem::path& file, const DataSelection& selection) {
  if (data_file_kind(file) == DataFileKind::json_lines) return detail::open_json_records(file);
  auto fields = selection.form == DataForm::messages ? std::vector{messages_field(selection)}
                                                     : std::vector<std::string>{"prompt", "completion"};
  for (const auto* name : kUnsaidBeside) fields.push_back("!" + std::string(name));
  return open_parquet_records(file, fields);
}

}  // namespace fsdp
