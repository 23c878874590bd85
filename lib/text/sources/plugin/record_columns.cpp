#include "lib/text/sources/plugin/record_columns.hpp"

#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <new>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "lib/text/sources/plugin/column_choice.hpp"
#include "lib/text/sources/plugin/json_value.hpp"

namespace fsdp::detail {
namespace {

constexpr std::int64_t kBatch_rows = 64;
constexpr std::int64_t kRecordBuffer_bytes = 1 << 20;

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <class T>
T checked(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

// Newer versions of Arrow return the reader; older ones store it through an argument.
template <class Builder>
std::unique_ptr<parquet::arrow::FileReader> build(Builder& builder) {
  if constexpr (requires { builder.Build(); }) {
    return checked(builder.Build());
  } else {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    check(builder.Build(&reader));
    return reader;
  }
}

template <class Reader>
std::shared_ptr<arrow::RecordBatchReader> batches_of(Reader& reader, const std::vector<int>& groups,
                                                     const std::vector<int>& leaves) {
  if constexpr (requires { reader.GetRecordBatchReader(groups, leaves); }) {
    return checked(reader.GetRecordBatchReader(groups, leaves));
  } else {
    std::unique_ptr<arrow::RecordBatchReader> batches;
    check(reader.GetRecordBatchReader(groups, leaves, &batches));
    return batches;
  }
}

std::unique_ptr<parquet::arrow::FileReader> open_record_file(const std::string& file) {
  parquet::ReaderProperties pages(arrow::system_memory_pool());
  pages.enable_buffered_stream();
  pages.set_buffer_size(kRecordBuffer_bytes);
  pages.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties batches;
  batches.set_batch_size(kBatch_rows);
  batches.set_pre_buffer(false);
  batches.set_use_threads(false);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.OpenFile(file, /*memory_map=*/false, pages));
  builder.memory_pool(arrow::system_memory_pool())->properties(batches);
  return build(builder);
}

/// The leaves below the fields.
std::vector<int> choose_leaves(const parquet::SchemaDescriptor& schema, std::string_view fields) {
  const auto& root = *schema.group_node();
  std::vector<int> leaves;
  while (!fields.empty()) {
    const auto end = std::min(fields.find('\n'), fields.size());
    auto name = std::string(fields.substr(0, end));
    fields.remove_prefix(std::min(end + 1, fields.size()));
    const bool optional = name.starts_with('!');
    if (optional) name.erase(0, 1);
    const int index = find_column(root, name);
    if (index < 0) {
      if (optional) continue;
      throw std::runtime_error("has no column '" + name + "', only " + column_names(root));
    }
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.GetColumnRoot(i) == root.field(index).get()) leaves.push_back(i);
    }
  }
  return leaves;
}

class RecordColumns : public ParquetColumn {
 public:
  RecordColumns(const std::string& file, std::string_view fields)
      : fields_("\n" + std::string(fields) + "\n"), reader_(open_record_file(file)) {
    const auto metadata = reader_->parquet_reader()->metadata();
    num_rows_ = metadata->num_rows();
    std::vector<int> groups(static_cast<std::size_t>(metadata->num_row_groups()));
    std::iota(groups.begin(), groups.end(), 0);
    batches_ = batches_of(*reader_, groups, choose_leaves(*metadata->schema(), fields));
  }

  Step next(std::string& text) noexcept override {
    try {
      return read_row(text) ? Step::document : Step::end;
    } catch (const std::bad_alloc&) {
      return fail(text, "out of memory");
    } catch (const std::exception& error) {
      return fail(text, error.what());
    } catch (...) {
      return fail(text, "cannot be read");
    }
  }
  std::int64_t row() const noexcept override { return next_row_ - 1; }
  std::int64_t num_rows() const noexcept override { return num_rows_; }

 private:
  Step fail(std::string& text, const char* what) const noexcept {
    try {
      text = "row " + std::to_string(next_row_) + ": " + what;
    } catch (...) {
      text.clear();
    }
    return Step::failed;
  }

  bool read_row(std::string& text) {
    while (batch_ == nullptr || at_ == batch_->num_rows()) {
      check(batches_->ReadNext(&batch_));
      at_ = 0;
      if (batch_ != nullptr) continue;
      if (next_row_ != num_rows_) throw std::runtime_error("the file ends early, it is damaged");
      return false;
    }
    text = "{";
    for (int i = 0; i < batch_->num_columns(); ++i) {
      if (i > 0) text += ',';
      append_json_string(batch_->column_name(i), text);
      text += ':';
      const bool looked_at = fields_.find("\n!" + batch_->column_name(i) + "\n") != fields_.npos;
      looked_at ? append_presence(*batch_->column(i), at_, text) : append_json_value(*batch_->column(i), at_, text);
    }
    text += '}';
    ++at_;
    ++next_row_;
    return true;
  }

  std::string fields_;  ///< each between line ends
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t at_ = 0;        ///< in the batch
  std::int64_t next_row_ = 0;  ///< in the file
  std::int64_t num_rows_ = 0;
};

}  // namespace

std::unique_ptr<ParquetColumn> open_record_columns(const std::string& file, std::string_view fields) {
  return std::make_unique<RecordColumns>(file, fields);
}

std::string column_lines(const std::string& file) {
  const auto reader = parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false);
  const auto& root = *reader->metadata()->schema()->group_node();
  std::string lines;
  for (int i = 0; i < root.field_count(); ++i) lines += root.field(i)->name() + "\n";
  return lines;
}

}  // namespace fsdp::detail
