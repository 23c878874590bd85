#include "lib/text/sources/plugin/text_column.hpp"

#include <arrow/memory_pool.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <array>
#include <new>
#include <stdexcept>

#include "lib/text/sources/plugin/column_choice.hpp"

namespace fsdp::detail {
namespace {

constexpr std::int64_t kBatch = 1024;
constexpr std::int64_t kBuffer_bytes = 1 << 20;

std::unique_ptr<parquet::ParquetFileReader> open_file(const std::string& file) {
  // Plain malloc instead of Arrow's own pool, and pages as they come instead of whole columns of a row group.
  parquet::ReaderProperties properties(arrow::system_memory_pool());
  properties.enable_buffered_stream();
  properties.set_buffer_size(kBuffer_bytes);
  properties.set_page_checksum_verification(true);
  return parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false, properties);
}

/// Byte strings with their levels, a batch at a time.
class TextColumn : public ParquetColumn {
 public:
  TextColumn(const std::string& file, const std::string& field)
      : reader_(open_file(file)), metadata_(reader_->metadata()), choice_(choose_column(*metadata_->schema(), field)) {}

  Step next(std::string& text) noexcept override {
    try {
      if (!read_row(text)) return Step::end;
      return Step::document;
    } catch (const std::bad_alloc&) {
      return fail(text, "out of memory");
    } catch (const std::exception& error) {
      return fail(text, error.what());
    } catch (...) {
      return fail(text, "cannot be read");
    }
  }
  std::int64_t row() const noexcept override { return next_row_ - 1; }
  std::int64_t num_rows() const noexcept override { return metadata_->num_rows(); }

 private:
  Step fail(std::string& text, const char* what) const noexcept {
    try {
      text = "row group " + std::to_string(group_) + ", row " + std::to_string(next_row_) + ": " + what;
    } catch (...) {
      text.clear();
    }
    return Step::failed;
  }

  bool read_row(std::string& text) {
    text.clear();
    while (group_ < 0 || rows_left_ == 0) {
      if (group_ >= 0 && available()) throw std::runtime_error("the row group goes on after its last row");
      if (group_ + 1 >= metadata_->num_row_groups()) return false;
      open_group(group_ + 1);
    }
    if (!available()) throw std::runtime_error("the row group ends early, it is damaged");
    if (choice_.list && rep_levels_[level_] != 0) throw std::runtime_error("the row begins within a list");
    std::size_t elements = 0;
    do {
      take(text, elements);
    } while (choice_.list && available() && rep_levels_[level_] != 0);
    --rows_left_;
    ++next_row_;
    return true;
  }

  void take(std::string& text, std::size_t& elements) {
    const auto level = choice_.value_level > 0 ? def_levels_[level_] : choice_.value_level;
    ++level_;
    if (level < choice_.value_level) {
      if (choice_.list && level >= choice_.list_level) {
        throw std::runtime_error("the list in column '" + choice_.name + "' has a null at position " +
                                 std::to_string(elements));
      }
      return;  // null, or an empty list
    }
    if (value_ >= values_read_) throw std::runtime_error("a value is missing, the page is damaged");
    if (elements++ > 0) text += ' ';
    const auto& value = values_[static_cast<std::size_t>(value_++)];
    text.append(reinterpret_cast<const char*>(value.ptr), value.len);
  }

  /// \return false at the end of the row group
  bool available() {
    while (level_ == levels_read_) {
      if (!column_->HasNext()) return false;
      level_ = 0;
      value_ = 0;
      // The values point into the page, which the next call may let go.
      levels_read_ = static_cast<std::size_t>(
          column_->ReadBatch(kBatch, def_levels_.data(), rep_levels_.data(), values_.data(), &values_read_));
      if (levels_read_ == 0) throw std::runtime_error("the page holds fewer values than it says, it is damaged");
    }
    return true;
  }

  void open_group(int group) {
    column_.reset();
    row_group_.reset();
    group_ = group;
    level_ = levels_read_ = 0;
    row_group_ = reader_->RowGroup(group);
    rows_left_ = row_group_->metadata()->num_rows();
    if (rows_left_ < 0) throw std::runtime_error("the number of its rows is negative, the footer is damaged");
    column_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(row_group_->Column(choice_.leaf));
    if (column_ == nullptr) throw std::runtime_error("column '" + choice_.name + "' holds no strings");
  }

  std::unique_ptr<parquet::ParquetFileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  ColumnChoice choice_;
  int group_ = -1;
  std::int64_t rows_left_ = 0;  ///< of the row group
  std::int64_t next_row_ = 0;   ///< in the file
  std::shared_ptr<parquet::RowGroupReader> row_group_;
  std::shared_ptr<parquet::ByteArrayReader> column_;
  std::array<std::int16_t, kBatch> def_levels_{};
  std::array<std::int16_t, kBatch> rep_levels_{};
  std::array<parquet::ByteArray, kBatch> values_{};
  std::size_t level_ = 0, levels_read_ = 0;
  std::int64_t value_ = 0, values_read_ = 0;
};

}  // namespace

std::unique_ptr<ParquetColumn> open_text_column(const std::string& file, const std::string& field) {
  return std::make_unique<TextColumn>(file, field);
}

}  // namespace fsdp::detail
