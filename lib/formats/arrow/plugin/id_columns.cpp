#include "lib/formats/arrow/plugin/id_columns.hpp"

#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <limits>
#include <list>
#include <mutex>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "lib/formats/arrow/plugin/arrow_files.hpp"

namespace fsdp::detail {
namespace {

constexpr std::int64_t kMostDecoded_bytes = std::int64_t{256} << 20;
constexpr std::int64_t kIgnoredLabel = -100;

bool is_list_of_integers(const arrow::DataType& type) {
  const auto id = type.id();
  const bool is_list = id == arrow::Type::LIST || id == arrow::Type::LARGE_LIST || id == arrow::Type::FIXED_SIZE_LIST;
  return is_list && arrow::is_integer(type.field(0)->type()->id());
}

/// The columns of ids, and of labels beside them; -1: there is none.
struct IdFields {
  int ids = -1, labels = -1;
};

bool has_texts(const arrow::Schema& schema) {
  return std::any_of(kTextColumns.begin(), kTextColumns.end(),
                     [&](const auto* name) { return schema.GetFieldIndex(name) >= 0; });
}

IdFields find_fields(const arrow::Schema& schema, const std::string& field) {
  const auto labels = schema.GetFieldIndex("labels");
  const bool fits = labels >= 0 && is_list_of_integers(*schema.field(labels)->type());
  const auto holds_ids = [&](int column) { return is_list_of_integers(*schema.field(column)->type()); };
  const auto named = schema.GetAllFieldIndices(field);
  if (!named.empty()) {
    return named.size() == 1 && holds_ids(named.front()) ? IdFields{named.front(), fits ? labels : -1} : IdFields{};
  }
  for (const std::string name : {"input_ids", "tokens"}) {
    const auto found = schema.GetAllFieldIndices(name);
    // Lists of words are called tokens, too.
    if (found.empty() || (name == "tokens" && !holds_ids(found.front()))) continue;
    if (found.size() > 1) throw std::runtime_error("has two columns '" + name + "', and which is meant cannot be said");
    if (holds_ids(found.front())) return {found.front(), fits ? labels : -1};
    if (has_texts(schema)) return {};
    throw std::runtime_error("column '" + name + "' holds " + schema.field(found.front())->type()->ToString() +
                             ", expected lists of whole numbers (list<int32>)");
  }
  return {};
}

/// The values of one row of a list.
struct Extent {
  const arrow::Array* values = nullptr;
  std::int64_t begin = 0, length = 0;
};

template <class List>
Extent extent_of(const arrow::Array& array, std::int64_t row) {
  const auto& list = static_cast<const List&>(array);
  if (list.IsNull(row)) {
    if constexpr (std::is_same_v<List, arrow::FixedSizeListArray>)
      throw std::runtime_error("is null, expected " + std::to_string(list.value_length(row)) + " ids as in each row");
    return {};
  }
  Extent extent{list.values().get(), static_cast<std::int64_t>(list.value_offset(row)),
                static_cast<std::int64_t>(list.value_length(row))};
  // Offsets come from the file, and nothing has looked at them.
  if (extent.begin < 0 || extent.length < 0 || extent.begin > extent.values->length() - extent.length)
    throw std::runtime_error("its list lies outside the values, the file is damaged");
  return extent;
}

Extent extent_of(const arrow::Array& array, std::int64_t row) {
  if (row < 0 || row >= array.length()) throw std::runtime_error("there is no such row");
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return extent_of<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST:
      return extent_of<arrow::LargeListArray>(array, row);
    default:
      return extent_of<arrow::FixedSizeListArray>(array, row);
  }
}

/// Calls `work` with a function that returns the value at a place, as large as possible where int64 cannot hold it.
template <class Work>
void with_values(const arrow::Array& array, const Work& work) {
  const auto as = [&]<class Typed>(const Typed& typed) {
    work([&](std::int64_t place) {
      const auto value = typed.Value(place);
      constexpr auto most = std::numeric_limits<std::int64_t>::max();
      return std::cmp_greater(value, most) ? most : static_cast<std::int64_t>(value);
    });
  };
  switch (array.type_id()) {
    case arrow::Type::INT32:
      return as(static_cast<const arrow::Int32Array&>(array));
    case arrow::Type::INT64:
      return as(static_cast<const arrow::Int64Array&>(array));
    case arrow::Type::UINT16:
      return as(static_cast<const arrow::UInt16Array&>(array));
    case arrow::Type::UINT32:
      return as(static_cast<const arrow::UInt32Array&>(array));
    case arrow::Type::INT16:
      return as(static_cast<const arrow::Int16Array&>(array));
    case arrow::Type::UINT64:
      return as(static_cast<const arrow::UInt64Array&>(array));
    case arrow::Type::UINT8:
      return as(static_cast<const arrow::UInt8Array&>(array));
    default:
      return as(static_cast<const arrow::Int8Array&>(array));
  }
}

// Newer versions of Arrow return the table; older ones store it through an argument.
template <class Reader>
std::shared_ptr<arrow::Table> read_group(Reader& reader, int group, const std::vector<int>& leaves) {
  if constexpr (requires { reader.ReadRowGroup(group, leaves); }) {
    return checked(reader.ReadRowGroup(group, leaves));
  } else {
    std::shared_ptr<arrow::Table> table;
    check(reader.ReadRowGroup(group, leaves, &table));
    return table;
  }
}

struct Block {
  std::shared_ptr<arrow::Array> ids, labels;
};

/// Reads rows of blocks, and turns exceptions into failures that name the row.
class IdRows : public IdColumn {
 public:
  std::int64_t num_blocks() const noexcept override { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t block_rows(std::int64_t block) const noexcept override { return rows_[static_cast<std::size_t>(block)]; }
  std::int64_t row_length() const noexcept override { return row_length_; }
  bool has_labels() const noexcept override { return has_labels_; }
  std::int64_t largest_block_bytes() const noexcept override { return 0; }

  bool lengths(std::int64_t block, std::vector<std::int64_t>* lengths, std::string* failure) noexcept override {
    std::int64_t row = 0;
    return guarded(block, row, failure, [&] {
      const auto arrays = block_of(block);
      lengths->clear();
      for (; row < arrays.ids->length(); ++row) lengths->push_back(extent_of(*arrays.ids, row).length);
    });
  }

  bool read(std::int64_t block, std::int64_t row, std::int32_t* ids, std::int64_t count,
            std::string* failure) noexcept override {
    return guarded(block, row, failure, [&] {
      const auto arrays = block_of(block);
      const auto extent = extent_of(*arrays.ids, row);
      if (count > extent.length) throw std::runtime_error("has fewer ids than at the start: was the file replaced?");
      if (count == 0) return;
      const bool has_nulls = extent.values->null_count() > 0;
      with_values(*extent.values, [&](const auto& value_at) {
        for (std::int64_t i = 0; i < count; ++i) {
          if (has_nulls && extent.values->IsNull(extent.begin + i))
            throw std::runtime_error("position " + std::to_string(i) + " is null, expected a token id");
          const auto value = value_at(extent.begin + i);
          if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
            throw std::runtime_error("position " + std::to_string(i) + ": " + std::to_string(value) +
                                     " is no token id, which is from 0 to 2147483647");
          }
          ids[i] = static_cast<std::int32_t>(value);
        }
      });
    });
  }

  bool read_mask(std::int64_t block, std::int64_t row, std::uint8_t* mask, std::int64_t count,
                 std::string* failure) noexcept override {
    return guarded(block, row, failure, [&] {
      const auto arrays = block_of(block);
      const auto ids = extent_of(*arrays.ids, row), labels = extent_of(*arrays.labels, row);
      if (labels.length != ids.length) {
        throw std::runtime_error("has " + std::to_string(labels.length) + " labels for " + std::to_string(ids.length) +
                                 " ids, expected one for each");
      }
      if (count > ids.length) throw std::runtime_error("has fewer ids than at the start: was the file replaced?");
      if (count == 0) return;
      with_values(*ids.values, [&](const auto& id_at) {
        with_values(*labels.values, [&](const auto& label_at) {
          for (std::int64_t i = 0; i < count; ++i) {
            const auto label = labels.values->IsNull(labels.begin + i) ? kIgnoredLabel : label_at(labels.begin + i);
            mask[i] = label == kIgnoredLabel ? 0 : 1;
            if (mask[i] == 0 || label == id_at(ids.begin + i)) continue;
            throw std::runtime_error("position " + std::to_string(i) + ": the label " + std::to_string(label) +
                                     " is neither the id there, " + std::to_string(id_at(ids.begin + i)) +
                                     ", nor -100: labels are not shifted, and say which ids count");
          }
        });
      });
    });
  }

 protected:
  /// The arrays of a block. Thread-safe.
  virtual Block block_of(std::int64_t block) = 0;
  void take_type(const arrow::DataType& type) {
    if (type.id() == arrow::Type::FIXED_SIZE_LIST)
      row_length_ = static_cast<const arrow::FixedSizeListType&>(type).list_size();
    if (type.id() == arrow::Type::FIXED_SIZE_LIST && row_length_ < 1)
      throw std::runtime_error("has rows of a fixed size of no ids");
  }
  /// Notes the rows of the next block. \throws std::runtime_error for more than a file holds
  void add_rows(std::int64_t rows) {
    constexpr std::int64_t kMost = std::int64_t{1} << 50;  // ids in a file
    num_rows_ += std::clamp<std::int64_t>(rows, 0, kMost);
    if (rows < 0 || num_rows_ > kMost / std::max<std::int64_t>(1, row_length_))
      throw std::runtime_error("claims a number of rows that no file holds, it is damaged");
    rows_.push_back(rows);
  }

  std::vector<std::int64_t> rows_;  ///< of each block
  bool has_labels_ = false;

 private:
  /// \param row  in the block, where the work is
  template <class Work>
  bool guarded(std::int64_t block, const std::int64_t& row, std::string* failure, const Work& work) noexcept {
    try {
      try {
        work();
        return true;
      } catch (const std::bad_alloc&) {
        *failure = "out of memory";
      } catch (const std::exception& error) {
        auto number = row;
        for (std::int64_t i = 0; i < block; ++i) number += block_rows(i);
        *failure = "row " + std::to_string(number) + ": " + error.what();
      }
    } catch (...) {
    }
    return false;
  }

  std::int64_t row_length_ = 0, num_rows_ = 0;
};

/// Batches of a stream in mapped memory: of each only where its buffers are is held.
class StreamIds : public IdRows {
 public:
  StreamIds(const std::string& file, IdFields fields, const arrow::Schema& schema) {
    take_type(*schema.field(fields.ids)->type());
    has_labels_ = fields.labels >= 0;
    input_ = checked(arrow::io::MemoryMappedFile::Open(file, arrow::io::FileMode::READ));
    std::vector<int> columns{fields.ids};
    if (has_labels_) columns.push_back(fields.labels);
    std::sort(columns.begin(), columns.end());
    const auto batches = open_stream(file, input_, columns);
    const int ids = has_labels_ && fields.labels < fields.ids ? 1 : 0;
    for (std::shared_ptr<arrow::RecordBatch> batch;;) {
      check(batches->ReadNext(&batch));
      if (batch == nullptr) break;
      check(batch->Validate());
      blocks_.push_back({batch->column(ids), has_labels_ ? batch->column(1 - ids) : nullptr});
      check_mapped(*blocks_.back().ids);
      add_rows(batch->num_rows());
    }
    check_end(*input_);
  }

 private:
  Block block_of(std::int64_t block) override { return blocks_[static_cast<std::size_t>(block)]; }

  /// Buffers of compressed batches are copies in memory, which all of them together may not fit into.
  void check_mapped(const arrow::Array& list) const {
    const auto& values = list.data()->child_data.front()->buffers[1];
    if (values == nullptr || values->size() == 0) return;
    const auto map = checked(input_->ReadAt(0, 1));
    const auto offset = static_cast<std::int64_t>(values->address() - map->address());
    if (offset < 0 || offset >= checked(input_->GetSize()))
      throw std::runtime_error("is a compressed Arrow stream: write it without compression, or as Parquet");
  }

  std::shared_ptr<arrow::io::MemoryMappedFile> input_;
  std::vector<Block> blocks_;
};

class ParquetIds : public IdRows {
 public:
  ParquetIds(std::unique_ptr<parquet::arrow::FileReader> reader, IdFields fields, const arrow::Schema& schema)
      : reader_(std::move(reader)) {
    take_type(*schema.field(fields.ids)->type());
    has_labels_ = fields.labels >= 0;
    const auto metadata = reader_->parquet_reader()->metadata();
    leaves_ = {leaf_of(*metadata, schema.field(fields.ids)->name())};
    if (has_labels_) leaves_.push_back(leaf_of(*metadata, schema.field(fields.labels)->name()));
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      const auto facts = metadata->RowGroup(group);
      add_rows(facts->num_rows());
      // Decoded ids have the width of their type.
      const auto& type = *schema.field(fields.ids)->type()->field(0)->type();
      constexpr std::int64_t kMost = std::int64_t{1} << 50;
      const auto values = std::clamp<std::int64_t>(facts->ColumnChunk(leaves_[0])->num_values(), 0, kMost);
      largest_ = std::max(largest_, values * (type.bit_width() / 8));
    }
  }

  std::int64_t largest_block_bytes() const noexcept override { return largest_; }

 private:
  struct Decoded {
    std::int64_t number;
    Block block;
    std::int64_t bytes;
  };

  static int leaf_of(const parquet::FileMetaData& metadata, const std::string& name) {
    const auto& schema = *metadata.schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.GetColumnRoot(i)->name() == name) return i;
    }
    throw std::runtime_error("has no leaf of column '" + name + "', the schema is damaged");
  }

  static std::shared_ptr<arrow::Array> joined(const arrow::Table& table, const std::string& name) {
    const auto column = table.GetColumnByName(name);
    if (column == nullptr) throw std::runtime_error("column '" + name + "' is missing");
    if (column->num_chunks() == 1) return column->chunk(0);
    return checked(arrow::Concatenate(column->chunks(), arrow::system_memory_pool()));
  }

  Block block_of(std::int64_t number) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.number == number; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().block;
    }
    const auto table = read_group(*reader_, static_cast<int>(number), leaves_);
    const auto& schema = *table->schema();
    Block block{joined(*table, schema.field(0)->name()), nullptr};
    if (has_labels_) {
      // Columns come in the order of the file.
      const bool labels_first = schema.field(0)->name() == "labels";
      block.labels = joined(*table, schema.field(labels_first ? 0 : 1)->name());
      if (labels_first) block.ids = joined(*table, schema.field(1)->name());
    }
    if (block.ids->length() != block_rows(number))
      throw std::runtime_error("the row group has other rows than its footer says, it is damaged");
    check(block.ids->Validate());
    if (block.labels != nullptr) check(block.labels->Validate());
    const auto bytes = extent_bytes(*block.ids) + (block.labels != nullptr ? extent_bytes(*block.labels) : 0);
    kept_.push_front({number, block, bytes});
    std::int64_t total = 0;
    for (auto one = kept_.begin(); one != kept_.end();) {
      total += one->bytes;
      one = total > kMostDecoded_bytes && one != kept_.begin() ? kept_.erase(one) : std::next(one);
    }
    return block;
  }

  static std::int64_t extent_bytes(const arrow::Array& list) {
    const auto& values = *list.data()->child_data.front();
    return values.length * std::max(1, list.type()->field(0)->type()->bit_width() / 8);
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> leaves_;
  std::int64_t largest_ = 0;
  std::mutex mutex_;
  std::list<Decoded> kept_;  ///< the last one that was used first
};

}  // namespace

std::unique_ptr<IdColumn> open_id_column(const std::string& file, const std::string& field) {
  if (is_arrow_stream(file)) {
    const auto schema = open_stream(file, open_input(file))->schema();
    const auto fields = find_fields(*schema, field);
    return fields.ids < 0 ? nullptr : std::make_unique<StreamIds>(file, fields, *schema);
  }
  constexpr std::int64_t kUnused = 64;
  auto reader = open_parquet_file(file, kUnused);
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema));
  const auto fields = find_fields(*schema, field);
  return fields.ids < 0 ? nullptr : std::make_unique<ParquetIds>(std::move(reader), fields, *schema);
}

}  // namespace fsdp::detail
