#include "lib/documents/parquet_documents.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <set>

#include "lib/base/process/plugin.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace detail {
namespace {

PluginKind parquet_plugin() {
  return {"libfsdp_parquet.so",
          "Parquet support",
          kParquetAbiSymbol,
          {kOpenParquetSymbol, kOpenParquetRecordsSymbol, kParquetColumnsSymbol, kParquetRowGroupsSymbol},
          false};
}

ParquetPlugin find_parquet_plugin(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> candidates;
  if (const auto library = find_plugin(parquet_plugin(), candidates)) {
    return open_parquet_plugin(*library, kParquetPluginAbi);
  }
  throw RuntimeFailure(
      fmt::format("{}: is a Parquet file, and the support for these is missing (neither {} nor {} exists): build again "
                  "with pyarrow or Arrow's C++ libraries there (scripts/setup), or give JSON Lines, CSV or text",
                  file.string(), candidates.front().string(), candidates.back().string()));
}

/// Removes line ends at the end of Arrow's messages, and replaces messages about encryption.
std::string worded(const std::string& text) {
  if (text.find("ecrypt") != text.npos) return "is encrypted Parquet, for which no key can be given: decrypt it first";
  return text.substr(0, text.find_last_not_of(" \n") + 1);
}

std::vector<std::string> lines_of(const std::filesystem::path& file, ParquetLinesFunction* function) {
  std::string text, failure;
  if (!function(file.c_str(), &text, &failure)) throw FormatError(file.string() + ": " + worded(failure));
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

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

std::vector<std::filesystem::path> parquet_plugin_candidates(const std::filesystem::path& program_directory) {
  return plugin_candidates(program_directory, parquet_plugin().file);
}

ParquetPlugin open_parquet_plugin(const std::filesystem::path& library, const std::string& abi) {
  const auto symbols = open_plugin(parquet_plugin(), library, abi);
  return {reinterpret_cast<OpenParquetFunction*>(symbols[0]), reinterpret_cast<OpenParquetRecordsFunction*>(symbols[1]),
          reinterpret_cast<ParquetLinesFunction*>(symbols[2]), reinterpret_cast<ParquetLinesFunction*>(symbols[3])};
}

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

std::vector<std::string> parquet_columns(const std::filesystem::path& file) {
  return detail::lines_of(file, detail::find_parquet_plugin(file).columns);
}

std::vector<std::int64_t> parquet_row_groups(const std::filesystem::path& file) {
  std::vector<std::int64_t> bytes;
  for (const auto& line : detail::lines_of(file, detail::find_parquet_plugin(file).row_groups))
    bytes.push_back(std::strtoll(line.c_str(), nullptr, 10));
  return bytes;
}

}  // namespace fsdp
