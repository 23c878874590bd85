#include "lib/formats/arrow/plugin/parquet_columns.hpp"

#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <parquet/arrow/reader.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>
#include <parquet/types.h>

#include <array>
#include <cstdint>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/formats/arrow/plugin/arrow_files.hpp"
#include "lib/formats/arrow/plugin/json_value.hpp"

namespace fsdp::detail {
namespace {

/// A leaf column of byte strings, with one value or one list per row. The definition levels (Dremel encoding) count the
/// optional or repeated nodes on the way from the root to the leaf.
struct ColumnChoice {
  int leaf = 0;                  ///< index among all leaves of the file
  bool list = false;             ///< values are elements of a list; otherwise cells
  bool json = false;             ///< values are JSON, as datasets' type Json is stored
  std::int16_t list_level = 0;   ///< lowest definition level of an element
  std::int16_t value_level = 0;  ///< definition level of a value that is not null
  std::string name;
};

/// Lists the names of columns for messages: "'text', 'Moves'".
std::string column_names(const parquet::schema::GroupNode& root) {
  std::string names;
  for (int i = 0; i < root.field_count() && names.size() < 200; ++i) {
    names += (names.empty() ? "'" : ", '") + root.field(i)->name() + "'";
  }
  return names.empty() ? "none" : names;
}

/// Index of the top-level column `name`; -1 when there is none. \throws std::runtime_error when there are two
int find_column(const parquet::schema::GroupNode& root, const std::string& name) {
  int found = -1;
  for (int i = 0; i < root.field_count(); ++i) {
    if (root.field(i)->name() != name) continue;
    if (found >= 0) throw std::runtime_error("has two columns '" + name + "', and which is meant cannot be said");
    found = i;
  }
  return found;
}

int find_field(const parquet::schema::GroupNode& root, const std::string& field) {
  if (!field.empty()) return find_column(root, field);
  const int text = find_column(root, "text");
  return text >= 0 ? text : find_column(root, "Moves");
}

/// True when the leaf is the member of a record. A record with one member has one leaf, like a string; the two groups
/// of a list do not count.
bool is_within_record(const parquet::ColumnDescriptor& leaf, const parquet::schema::Node& root) {
  const auto is_list = [](const parquet::schema::Node& node) {
    return node.logical_type() != nullptr && node.logical_type()->is_list();
  };
  for (const auto* node = leaf.schema_node()->parent(); node != nullptr && node != &root; node = node->parent()) {
    const auto* above = node->parent();
    if (!is_list(*node) && !(node->is_repeated() && above != nullptr && is_list(*above))) return true;
  }
  return false;
}

/// Writers give a column this type where every value is null, as no other is known.
bool is_null_type(const parquet::ColumnDescriptor& leaf) {
  return leaf.logical_type() != nullptr && leaf.logical_type()->is_null();
}

bool is_null_type(const arrow::DataType& type) {
  if (type.id() == arrow::Type::NA) return true;
  return arrow::is_list_like(type.id()) && is_null_type(*type.field(0)->type());
}

/// \param expected  what a column of values would have
[[noreturn]] void refuse_null_type(const std::string& column, const char* expected) {
  throw std::runtime_error("column '" + column + "' has no values: its type is null, expected " + expected);
}

bool holds_text(const parquet::ColumnDescriptor& leaf) {
  if (leaf.physical_type() != parquet::Type::BYTE_ARRAY) return false;
  const auto& type = leaf.logical_type();
  return type == nullptr || type->is_none() || type->is_string() || type->is_enum() || type->is_JSON();
}

std::string type_name(const parquet::ColumnDescriptor& leaf) {
  const auto& type = leaf.logical_type();
  const auto physical = parquet::TypeToString(leaf.physical_type());
  return type == nullptr || type->is_none() ? physical : physical + " " + type->ToString();
}

/// Chooses the column of texts.
/// \param field  a top-level column; empty: `text`, else `Moves`
/// \throws std::runtime_error listing the columns when there is no such column or it holds no texts
ColumnChoice choose_column(const parquet::SchemaDescriptor& schema, const std::string& field) {
  const auto& root = *schema.group_node();
  const int index = find_field(root, field);
  if (index < 0) {
    throw std::runtime_error("has no column " + (field.empty() ? "'text' or 'Moves'" : "'" + field + "'") + ", only " +
                             column_names(root) +
                             "; --data-field names the one to read (of fsdp-download tokens: --field)");
  }
  ColumnChoice choice;
  choice.name = root.field(index)->name();
  int leaves = 0;
  for (int i = 0; i < schema.num_columns(); ++i) {
    if (schema.GetColumnRoot(i) != root.field(index).get()) continue;
    choice.leaf = i;
    ++leaves;
  }
  if (leaves != 1) {
    throw std::runtime_error("column '" + choice.name + "' is a record of " + std::to_string(leaves) +
                             " columns, expected strings or lists of strings");
  }
  const auto& leaf = *schema.Column(choice.leaf);
  if (is_within_record(leaf, root)) {
    throw std::runtime_error("column '" + choice.name + "' holds records (of '" + leaf.name() +
                             "'), expected strings or lists of strings");
  }
  if (leaf.max_repetition_level() > 1) {
    throw std::runtime_error("column '" + choice.name + "' holds lists of lists, expected strings or lists of strings");
  }
  if (is_null_type(leaf)) refuse_null_type(choice.name, "strings or lists of strings");
  if (!holds_text(leaf)) {
    throw std::runtime_error("column '" + choice.name + "' holds " + type_name(leaf) +
                             ", expected strings or lists of strings");
  }
  choice.json = leaf.logical_type() != nullptr && leaf.logical_type()->is_JSON();
  choice.value_level = leaf.max_definition_level();
  // Optional nodes below the list stand for null elements, those above it for null lists; the definition level of an
  // empty list is one less than that of the list.
  std::int16_t below = 0;
  for (const parquet::schema::Node* node = leaf.schema_node().get(); node != nullptr && node != &root;
       node = node->parent()) {
    if (node->is_repeated()) {
      choice.list = true;
      choice.list_level = static_cast<std::int16_t>(choice.value_level - below);
      break;
    }
    if (node->is_optional()) ++below;
  }
  return choice;
}

constexpr std::int64_t kBatch = 1024;
constexpr std::int64_t kBuffer_bytes = 1 << 20;

std::unique_ptr<parquet::ParquetFileReader> open_file(const std::string& file) {
  // malloc instead of Arrow's own pool, and page by page instead of whole columns of a row group.
  parquet::ReaderProperties properties(arrow::system_memory_pool());
  properties.enable_buffered_stream();
  properties.set_buffer_size(kBuffer_bytes);
  properties.set_page_checksum_verification(true);
  return parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false, properties);
}

/// Checks the choice of row groups. \return that of all where `wanted` has no end
RowGroups chosen_groups(const parquet::FileMetaData& metadata, RowGroups wanted) {
  const auto all = metadata.num_row_groups();
  if (wanted.end == 0) return {0, all};
  if (wanted.begin < 0 || wanted.begin > wanted.end || wanted.end > all) {
    throw std::runtime_error("has " + std::to_string(all) + " row groups, and those up to " +
                             std::to_string(wanted.end) + " are asked for: was the file replaced?");
  }
  return wanted;
}

/// Rows before a row group.
std::int64_t first_row(const parquet::FileMetaData& metadata, std::int64_t group) {
  std::int64_t rows = 0;
  for (int i = 0; i < group; ++i) rows += metadata.RowGroup(i)->num_rows();
  return rows;
}

/// Reads rows, and turns exceptions into Step::failed.
class RowReader : public ParquetColumn {
 public:
  Step next(std::string& text) noexcept final {
    try {
      if (!read_row(text)) return Step::end;
      ++next_row_;
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

 protected:
  /// Replaces `text` by the value of the next row. \return false at the end of the file
  virtual bool read_row(std::string& text) = 0;
  /// For messages, before the row: "row group 1, "
  virtual std::string location() const { return {}; }
  std::int64_t next_row() const { return next_row_; }
  void begin_at(std::int64_t row) { next_row_ = row; }

 private:
  Step fail(std::string& text, const char* what) const noexcept {
    try {
      text = location() + "row " + std::to_string(next_row_) + ": " + what;
    } catch (...) {
      text.clear();
    }
    return Step::failed;
  }

  std::int64_t next_row_ = 0;  ///< in the file
};

/// Reads byte strings with their levels in batches.
class TextColumn : public RowReader {
 public:
  TextColumn(const std::string& file, const std::string& field, RowGroups groups)
      : reader_(open_file(file)),
        metadata_(reader_->metadata()),
        choice_(choose_column(*metadata_->schema(), field)),
        groups_(chosen_groups(*metadata_, groups)),
        group_(groups_.begin - 1) {
    begin_at(first_row(*metadata_, groups_.begin));
  }

  std::int64_t num_rows() const noexcept override { return metadata_->num_rows(); }

 private:
  std::string location() const override { return "row group " + std::to_string(group_) + ", "; }

  bool read_row(std::string& text) override {
    text.clear();
    while (group_ < groups_.begin || rows_left_ == 0) {
      if (group_ >= groups_.begin && available()) throw std::runtime_error("the row group goes on after its last row");
      if (group_ + 1 >= groups_.end) return false;
      open_group(group_ + 1);
    }
    if (!available()) throw std::runtime_error("the row group ends early, it is damaged");
    if (choice_.list && rep_levels_[level_] != 0) throw std::runtime_error("the row begins within a list");
    std::size_t elements = 0;
    do {
      take(text, elements);
    } while (choice_.list && available() && rep_levels_[level_] != 0);
    --rows_left_;
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
    const auto& value = element(values_, value_++);
    const std::string_view bytes(reinterpret_cast<const char*>(value.ptr), value.len);
    if (choice_.json) {
      append_text_of_json(bytes, choice_.list, text);
    } else {
      text += bytes;
    }
  }

  /// \return false at the end of the row group
  bool available() {
    while (level_ == levels_read_) {
      if (!column_->HasNext()) return false;
      level_ = 0;
      value_ = 0;
      // The values point into the page, which the next call may release.
      levels_read_ = static_cast<std::size_t>(
          column_->ReadBatch(kBatch, def_levels_.data(), rep_levels_.data(), values_.data(), &values_read_));
      if (levels_read_ == 0) throw std::runtime_error("the page holds fewer values than it says, it is damaged");
    }
    return true;
  }

  void open_group(std::int64_t group) {
    column_.reset();
    row_group_.reset();
    group_ = group;
    level_ = levels_read_ = 0;
    row_group_ = reader_->RowGroup(static_cast<int>(group));
    rows_left_ = row_group_->metadata()->num_rows();
    if (rows_left_ < 0) throw std::runtime_error("the number of its rows is negative, the footer is damaged");
    column_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(row_group_->Column(choice_.leaf));
    if (column_ == nullptr) throw std::runtime_error("column '" + choice_.name + "' holds no strings");
  }

  std::unique_ptr<parquet::ParquetFileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  ColumnChoice choice_;
  RowGroups groups_;
  std::int64_t group_;
  std::int64_t rows_left_ = 0;  ///< rows of the row group that are left
  std::shared_ptr<parquet::RowGroupReader> row_group_;
  std::shared_ptr<parquet::ByteArrayReader> column_;
  std::array<std::int16_t, kBatch> def_levels_{};
  std::array<std::int16_t, kBatch> rep_levels_{};
  std::array<parquet::ByteArray, kBatch> values_{};
  std::size_t level_ = 0, levels_read_ = 0;
  std::int64_t value_ = 0, values_read_ = 0;
};

constexpr std::int64_t kBatch_rows = 64;

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

struct Field {
  std::string name;
  bool optional = false;  ///< a mark stood before the name
};

/// Takes the first line of `fields`.
Field take_field(std::string_view& fields) {
  const auto end = std::min(fields.find('\n'), fields.size());
  Field field{std::string(fields.substr(0, end))};
  fields.remove_prefix(std::min(end + 1, fields.size()));
  field.optional = field.name.starts_with('!') || field.name.starts_with('?');
  if (field.optional) field.name.erase(0, 1);
  return field;
}

/// The leaves below the fields.
std::vector<int> choose_leaves(const parquet::SchemaDescriptor& schema, std::string_view fields) {
  const auto& root = *schema.group_node();
  std::vector<int> leaves;
  while (!fields.empty()) {
    const auto [name, optional] = take_field(fields);
    const int index = find_column(root, name);
    if (index < 0) {
      if (optional) continue;
      throw std::runtime_error("has no column '" + name + "', only " + column_names(root));
    }
    const auto before = leaves.size();
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.GetColumnRoot(i) == root.field(index).get()) leaves.push_back(i);
    }
    if (!optional && leaves.size() == before + 1 && is_null_type(*schema.Column(leaves.back())))
      refuse_null_type(name, "strings or records");
  }
  return leaves;
}

std::string stream_column_names(const arrow::Schema& schema) {
  std::string names;
  for (const auto& field : schema.fields()) names += (names.empty() ? "'" : ", '") + field->name() + "'";
  return names.substr(0, 300);
}

/// The columns of an Arrow stream that `fields` name, as choose_leaves().
std::vector<int> choose_columns(const arrow::Schema& schema, std::string_view fields) {
  std::vector<int> columns;
  while (!fields.empty()) {
    const auto [name, optional] = take_field(fields);
    const auto found = schema.GetAllFieldIndices(name);
    if (found.size() > 1) throw std::runtime_error("has two columns '" + name + "', and which is meant cannot be said");
    if (!found.empty()) columns.push_back(found.front());
    if (optional) continue;
    if (found.empty()) throw std::runtime_error("has no column '" + name + "', only " + stream_column_names(schema));
    if (is_null_type(*schema.field(found.front())->type())) refuse_null_type(name, "strings or records");
  }
  return columns;
}

class RecordColumns : public RowReader {
 public:
  RecordColumns(const std::string& file, std::string_view fields, RowGroups groups)
      : fields_("\n" + std::string(fields) + "\n") {
    if (is_arrow_stream(file)) {
      stream_ = open_input(file);
      batches_ = open_stream(file, stream_, choose_columns(*open_stream(file, open_input(file))->schema(), fields));
      return;
    }
    reader_ = open_parquet_file(file, kBatch_rows);
    const auto metadata = reader_->parquet_reader()->metadata();
    num_rows_ = metadata->num_rows();
    const auto chosen = chosen_groups(*metadata, groups);
    std::vector<int> numbers(static_cast<std::size_t>(chosen.end - chosen.begin));
    std::iota(numbers.begin(), numbers.end(), static_cast<int>(chosen.begin));
    begin_at(first_row(*metadata, chosen.begin));
    end_row_ = first_row(*metadata, chosen.end);
    batches_ = batches_of(*reader_, numbers, choose_leaves(*metadata->schema(), fields));
  }

  std::int64_t num_rows() const noexcept override { return num_rows_; }

 private:
  bool read_row(std::string& text) override {
    while (batch_ == nullptr || at_ == batch_->num_rows()) {
      check(batches_->ReadNext(&batch_));
      at_ = 0;
      if (batch_ != nullptr && reader_ == nullptr) check(batch_->ValidateFull());  // Parquet's reader has checked it
      if (batch_ != nullptr) continue;
      if (reader_ != nullptr && next_row() != end_row_) throw std::runtime_error("the file ends early, it is damaged");
      if (stream_ != nullptr) check_end(*stream_);
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
    return true;
  }

  std::string fields_;                                   ///< each between line ends
  std::unique_ptr<parquet::arrow::FileReader> reader_;   ///< null for an Arrow stream
  std::shared_ptr<arrow::io::RandomAccessFile> stream_;  ///< null for Parquet
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t at_ = 0;  ///< in the batch
  std::int64_t num_rows_ = 0;
  std::int64_t end_row_ = 0;  ///< after the row groups that are read
};

}  // namespace

std::unique_ptr<ParquetColumn> open_text_column(const std::string& file, const std::string& field, RowGroups groups) {
  return std::make_unique<TextColumn>(file, field, groups);
}

std::unique_ptr<ParquetColumn> open_record_columns(const std::string& file, std::string_view fields, RowGroups groups) {
  return std::make_unique<RecordColumns>(file, fields, groups);
}

std::string column_lines(const std::string& file) {
  if (is_arrow_stream(file)) {
    std::string lines;
    const auto schema = open_stream(file, open_input(file))->schema();
    for (const auto& field : schema->fields()) lines += field->name() + "\n";
    return lines;
  }
  const auto reader = parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false);
  const auto& root = *reader->metadata()->schema()->group_node();
  std::string lines;
  for (int i = 0; i < root.field_count(); ++i) lines += root.field(i)->name() + "\n";
  return lines;
}

std::string row_group_lines(const std::string& file) {
  const auto metadata = parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false)->metadata();
  std::string lines;
  for (int i = 0; i < metadata->num_row_groups(); ++i) {
    const auto group = metadata->RowGroup(i);
    // Not all writers note the compressed size.
    const auto compressed = group->total_compressed_size();
    lines += std::to_string(compressed > 0 ? compressed : group->total_byte_size()) + "\n";
  }
  return lines;
}

}  // namespace fsdp::detail
