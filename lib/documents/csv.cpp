// CSV (RFC 4180); see documents.hpp.
#include <algorithm>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/text_stream.hpp"

namespace fsdp {
namespace {

class Csv : public Documents {
 public:
  Csv(const std::filesystem::path& file, const std::string& field, char separator)
      : stream_(file), separator_(separator) {
    std::vector<std::string> header;
    if (!read_record([&](std::size_t column) -> std::string* {
          if (column >= kMostColumns) fail("has more than 65536 columns");
          return &header.emplace_back();
        })) {
      throw FormatError(file.string() + ": is empty, expected a header row with the column '" + field + "'");
    }
    num_columns_ = header.size();
    std::string names;
    for (column_ = 0; column_ < header.size() && header[column_] != field; ++column_) {
      if (names.size() < 200) names += (names.empty() ? "'" : ", '") + header[column_].substr(0, 100) + "'";
    }
    if (std::count(header.begin(), header.end(), field) > 1) {
      throw FormatError(file.string() + ": the header row has two columns '" + field +
                        "', and which is meant cannot be said");
    }
    if (column_ == header.size()) {
      throw FormatError(file.string() + ": the header row has no column '" + field + "', only " + names,
                        Remedy::data_field);
    }
    header.erase(iterator_at(header, column_));
    unread_ = std::move(header);
  }

  bool next(std::string& text) override {
    text.clear();
    return read_record([&](std::size_t column) { return column == column_ ? &text : nullptr; });
  }
  std::string where() const override { return stream_.path().string() + ": line " + std::to_string(record_line_); }
  std::int64_t bytes_read() const override { return stream_.bytes_read(); }
  std::vector<std::string> unread() const override { return unread_; }

 private:
  static constexpr std::size_t kMostColumns = 65536;

  [[noreturn]] void fail(const std::string& what) const { throw FormatError(where() + ": " + what); }

  /// Returns the next byte and counts line ends; -1 at the end.
  int get() {
    const int c = stream_.get();
    if (c == '\n' || (c == '\r' && stream_.peek() != '\n')) ++line_;
    return c;
  }

  void put(std::string* cell, int c) const {
    if (cell == nullptr) return;
    if (cell->size() >= detail::kMostText_bytes) fail("a cell is longer than 1 GiB; is a closing quote missing?");
    cell->push_back(static_cast<char>(c));
  }

  bool ends_record(int c) const { return c < 0 || c == '\n' || c == '\r'; }

  /// Reads one record; skips empty lines before it.
  /// \param cell  returns the destination for the text of a column, null to skip the cell
  /// \return false at the end
  template <class Cell>
  bool read_record(const Cell& cell) {
    while (stream_.peek() == '\n' || stream_.peek() == '\r') get();
    if (stream_.peek() < 0) return false;
    record_line_ = line_;
    std::size_t column = 0;
    int end = read_cell(cell(column));
    while (end == separator_) end = read_cell(cell(++column));
    if (end == '\r' && stream_.peek() == '\n') get();
    if (num_columns_ != 0 && column + 1 != num_columns_) {
      fail("has " + std::to_string(column + 1) + " fields, the header row has " + std::to_string(num_columns_));
    }
    return true;
  }

  /// \return the byte that ended the cell: the separator, a line end or -1
  int read_cell(std::string* cell) {
    int c = get();
    if (c == '"') return read_quoted(cell);
    for (; c != separator_ && !ends_record(c); c = get()) put(cell, c);
    return c;
  }

  int read_quoted(std::string* cell) {
    const auto quote_line = line_;
    while (true) {
      int c = get();
      if (c < 0) fail("the quote that opens in line " + std::to_string(quote_line) + " is never closed");
      if (c == '"') {
        c = get();
        if (c == separator_ || ends_record(c)) return c;
        if (c != '"') {
          fail("in line " + std::to_string(line_) +
               " text follows a closing quote; a quote inside a quoted cell is written twice");
        }
      }
      put(cell, c);
    }
  }

  detail::TextStream stream_;
  int separator_;
  std::size_t num_columns_ = 0;  ///< 0 until the header is read
  std::size_t column_ = 0;
  std::vector<std::string> unread_;  ///< names of the other columns
  std::int64_t line_ = 1;            ///< line of the next byte
  std::int64_t record_line_ = 1;     ///< line where the record began
};

}  // namespace

std::unique_ptr<Documents> detail::open_csv(const std::filesystem::path& file, const std::string& field,
                                            char separator) {
  return std::make_unique<Csv>(file, field, separator);
}

}  // namespace fsdp
