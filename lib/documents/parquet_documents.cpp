#include "lib/documents/parquet_documents.hpp"

#include <algorithm>
#include <set>

#include "lib/base/types/error.hpp"
#include "lib/formats/arrow/parquet_plugin.hpp"

namespace fsdp {
namespace detail {
namespace {

class ParquetDocuments : public Documents {
 public:
  /// \param read  the columns that are read; empty: the usual one
  ParquetDocuments(const std::filesystem::path& file, std::unique_ptr<ParquetColumn> column, std::set<std::string> read)
      : file_(file),
        file_bytes_(std::filesystem::file_size(file)),
        column_(std::move(column)),
        read_(std::move(read)) {}

  bool next(std::string& text) override {
    const auto step = column_->next(text);
    if (step == ParquetColumn::Step::failed) throw FormatError(file_.string() + ": " + worded(text));
    return step == ParquetColumn::Step::document;
  }
  std::string where() const override { return file_.string() + ": row " + std::to_string(column_->row()); }
  std::int64_t bytes_read() const override {
    const auto rows = static_cast<double>(column_->num_rows());
    const auto done = static_cast<double>(column_->row() + 1);
    return rows > 0 ? static_cast<std::int64_t>(done / rows * static_cast<double>(file_bytes_)) : 0;
  }
  std::vector<std::string> unread() const override {
    auto columns = parquet_columns(file_);
    const bool has_text = std::ranges::find(columns, "text") != columns.end();
    std::erase_if(columns, [&](const auto& name) {
      return read_.empty() ? name == (has_text ? "text" : "Moves") : read_.contains(name);
    });
    return columns;
  }

 private:
  std::filesystem::path file_;
  std::uintmax_t file_bytes_;
  std::unique_ptr<ParquetColumn> column_;
  std::set<std::string> read_;
};

std::unique_ptr<Documents> opened(const std::filesystem::path& file, ParquetColumn* column, const std::string& failure,
                                  std::set<std::string> read) {
  if (column == nullptr) throw FormatError(file.string() + ": " + worded(failure));
  return std::make_unique<ParquetDocuments>(file, std::unique_ptr<ParquetColumn>(column), std::move(read));
}

}  // namespace

}  // namespace detail

std::unique_ptr<Documents> open_parquet(const DataPiece& piece, const std::string& field) {
  std::string failure;
  auto* column = detail::find_parquet_plugin(piece.file)
                     .open_text(piece.file.c_str(), field.c_str(), {piece.begin, piece.end}, &failure);
  return detail::opened(piece.file, column, failure, field.empty() ? std::set<std::string>() : std::set{field});
}

std::unique_ptr<Documents> open_parquet_records(const DataPiece& piece, const std::vector<std::string>& fields) {
  std::string lines, failure;
  std::set<std::string> read;
  for (const auto& field : fields) {
    lines += (lines.empty() ? "" : "\n") + field;
    read.insert(field.substr(field.find_first_not_of("?!")));
  }
  auto* columns = detail::find_parquet_plugin(piece.file)
                      .open_records(piece.file.c_str(), lines.c_str(), {piece.begin, piece.end}, &failure);
  return detail::opened(piece.file, columns, failure, std::move(read));
}

}  // namespace fsdp
