#include "lib/corpus/documents.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/corpus/parquet_documents.hpp"

namespace fsdp {
namespace {

struct Signature {
  std::string_view bytes;
  const char* what;
};
constexpr std::array<Signature, 6> kNotText{
    {{"\x89HDF\r\n\x1a\n", "an HDF5 file, which holds tokens already or no text"},
     {"\x1f\x8b", "compressed by gzip: unpack it first"},
     {"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it first"},
     {"BZh", "compressed by bzip2: unpack it first"},
     {"\xfd"
      "7zXZ",
      "compressed by xz: unpack it first"},
     {"PK\x03\x04", "a ZIP archive: unpack it first"}}};
constexpr std::string_view kParquet = "PAR1";

std::string lower_suffix(const std::filesystem::path& file) {
  auto suffix = file.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return suffix;
}

std::string first_bytes(const std::filesystem::path& file) {
  const auto handle = File::open_read(file);
  std::string bytes(std::min<std::uint64_t>(8, handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
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
  const auto bytes = first_bytes(file);
  if (bytes.starts_with(kParquet)) return DataFileKind::parquet;
  for (const auto& signature : kNotText) {
    if (bytes.starts_with(signature.bytes)) throw FormatError(file.string() + ": is " + signature.what);
  }
  const auto suffix = lower_suffix(file);
  if (suffix == ".parquet") {
    throw FormatError(file.string() + ": is not a Parquet file (it does not begin with PAR1); was it copied whole?");
  }
  if (suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json") return DataFileKind::json_lines;
  if (suffix == ".csv" || suffix == ".tsv") return DataFileKind::csv;
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
      return detail::open_csv(file, field.empty() ? "text" : field, lower_suffix(file) == ".tsv" ? '\t' : ',');
    case DataFileKind::parquet:
      return open_parquet(file, field);
    default:
      return detail::open_plain_text(file);
  }
}

std::unique_ptr<Documents> open_records(const std::filesystem::path& file, const DataSelection& selection) {
  if (data_file_kind(file) == DataFileKind::json_lines) return detail::open_json_records(file);
  if (selection.form == DataForm::messages) return open_parquet_records(file, {messages_field(selection), "?tools"});
  return open_parquet_records(file, {"prompt", "completion"});
}

}  // namespace fsdp
