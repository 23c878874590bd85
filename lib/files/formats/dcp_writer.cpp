// Writes DCP data files, and `.metadata` as torch 2.11 does, with the opcodes of pickle protocol 2.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/files/formats/block.hpp"
#include "lib/files/formats/byte_sink.hpp"
#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/inside_directory.hpp"
#include "lib/files/formats/little_endian.hpp"
#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/formats/torch_blob_writer.hpp"

namespace fsdp {
namespace {

using detail::append_le;

void append_string(std::string& out, std::string_view text) {
  append_le(out, std::uint64_t{text.size()});
  out += text;
}

void append_shape(std::string& out, const Shape& shape) {
  append_le(out, std::uint64_t{shape.size()});
  for (const auto size : shape) append_le(out, size);
}

/// Reads back what append_* wrote. \throws FormatError when the bytes end too early
class ItemParser {
 public:
  explicit ItemParser(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  template <typename Integer>
  Integer number() {
    return detail::read_le<Integer>(take(sizeof(Integer)), 0);
  }
  std::string string() { return std::string(take(number<std::uint64_t>())); }
  Shape shape() {
    Shape shape(length(sizeof(std::int64_t)));
    for (auto& size : shape) size = number<std::int64_t>();
    return shape;
  }
  /// A number of elements of at least `unit_bytes` each; bounded by the bytes that are left.
  std::uint64_t length(std::size_t unit_bytes) {
    const auto count = number<std::uint64_t>();
    if (count > rest_.size() / unit_bytes) throw FormatError("a list of DCP items is cut off");
    return count;
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw FormatError("a list of DCP items is cut off");
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view rest_;
};

DcpItem parse_item(ItemParser& parser) {
  DcpItem item;
  item.key = parser.string();
  const auto path_length = parser.length(1);
  for (std::uint64_t i = 0; i < path_length; ++i) {
    if (parser.number<std::uint8_t>() != 0) {
      item.path.emplace_back(parser.number<std::int64_t>());
    } else {
      item.path.emplace_back(parser.string());
    }
  }
  item.is_tensor = parser.number<std::uint8_t>() != 0;
  item.dtype = dtype_from_torch(parser.string());
  item.global_shape = parser.shape();
  item.offsets = parser.shape();
  item.sizes = parser.shape();
  item.file = parser.string();
  item.offset_bytes = parser.number<std::uint64_t>();
  item.length_bytes = parser.number<std::uint64_t>();
  return item;
}

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";

/// Items by key. After check_tiling() all items of a key have different offsets.
using Group = std::vector<const DcpItem*>;
using Groups = std::map<std::string, Group>;

void check_agreement(const std::string& key, const Group& group) {
  const auto& first = *group.front();
  for (const auto* item : group) {
    if (item->is_tensor != first.is_tensor || (!first.is_tensor && item != &first)) {
      throw UsageError("checkpoint item \"" + key + "\" was written twice");
    }
    if (item->dtype != first.dtype || item->global_shape != first.global_shape) {
      throw UsageError("tensor \"" + key + "\": two ranks disagree about its type or shape");
    }
  }
}

/// PyTorch finds chunks by their offsets: an empty block is dropped where another block has the same offsets.
void check_tiling(const std::string& key, Group& group) {
  const auto is_empty = [](const DcpItem* item) { return num_elements(item->sizes) == 0; };
  std::stable_partition(group.begin(), group.end(), [&](const auto* item) { return !is_empty(item); });
  std::vector<Block> blocks;
  std::set<Shape> offsets;
  Group kept;
  for (const auto* item : group) {
    if (!is_empty(item)) blocks.push_back({item->offsets, item->sizes});
    if (offsets.insert(item->offsets).second || !is_empty(item)) kept.push_back(item);
  }
  if (const auto problem = detail::tiling_problem(std::move(blocks), num_elements(group.front()->global_shape))) {
    throw UsageError("tensor \"" + key + "\" cannot be saved: " + *problem);
  }
  group = std::move(kept);
}

class MetadataWriter {
 public:
  std::string write(const Groups& groups) {
    begin_instance(kMetadataModule, "Metadata");
    pickle_.string("state_dict_metadata");
    begin_dict();
    for (const auto& [key, group] : groups) write_entry(key, group);
    pickle_.set_items();
    pickle_.string("planner_data");
    begin_dict();
    for (const auto& [key, group] : groups) write_path(key, group.front()->path);
    pickle_.set_items();
    pickle_.string("storage_data");
    begin_dict();
    for (const auto& [key, group] : groups) {
      for (const auto* item : group) write_storage(*item);
    }
    pickle_.set_items();
    pickle_.string("storage_meta");
    pickle_.none();
    pickle_.string("version");
    pickle_.string("1.0.0");
    end_instance();
    return pickle_.finish();
  }

 private:
  void begin_dict() {
    pickle_.empty_dict();
    pickle_.mark();
  }
  void begin_instance(std::string_view module, std::string_view name) {
    pickle_.global(module, name);
    pickle_.empty_tuple();
    pickle_.new_object();
    begin_dict();
  }
  void end_instance() {
    pickle_.set_items();
    pickle_.build();
  }
  void write_size(const Shape& shape) {
    pickle_.global("torch", "Size");
    pickle_.mark();
    for (const auto size : shape) pickle_.integer(size);
    pickle_.tuple();
    pickle_.tuple1();
    pickle_.reduce();
  }

  void write_entry(const std::string& key, const std::vector<const DcpItem*>& group) {
    pickle_.string(key);
    if (!group.front()->is_tensor) {
      pickle_.global(kMetadataModule, "BytesStorageMetadata");
      pickle_.empty_tuple();
      pickle_.new_object();
      return;
    }
    begin_instance(kMetadataModule, "TensorStorageMetadata");
    pickle_.string("properties");
    write_properties(group.front()->dtype);
    pickle_.string("size");
    write_size(group.front()->global_shape);
    pickle_.string("chunks");
    pickle_.empty_list();
    pickle_.mark();
    for (const auto* item : group) {
      begin_instance(kMetadataModule, "ChunkStorageMetadata");
      pickle_.string("offsets");
      write_size(item->offsets);
      pickle_.string("sizes");
      write_size(item->sizes);
      end_instance();
    }
    pickle_.append_items();
    end_instance();
  }

  /// Writes the state of TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory).
  void write_properties(DType dtype) {
    pickle_.global(kMetadataModule, "TensorProperties");
    pickle_.empty_tuple();
    pickle_.new_object();
    pickle_.mark();
    pickle_.global("torch", torch_name(dtype));
    pickle_.global("torch.serialization", "_get_layout");
    pickle_.string("torch.strided");
    pickle_.tuple1();
    pickle_.reduce();
    pickle_.boolean(false);
    pickle_.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
    pickle_.integer(0);  // contiguous
    pickle_.tuple1();
    pickle_.reduce();
    pickle_.boolean(false);
    pickle_.tuple();
    pickle_.build();
  }

  void write_path(const std::string& key, const StatePath& path) {
    pickle_.string(key);
    pickle_.mark();
    if (path.empty()) pickle_.string(key);  // a key at the top level
    for (const auto& part : path) {
      if (const auto* position = std::get_if<std::int64_t>(&part)) {
        pickle_.integer(*position);
      } else {
        pickle_.string(std::get<std::string>(part));
      }
    }
    pickle_.tuple();
  }

  void write_storage(const DcpItem& item) {
    begin_instance(kMetadataModule, "MetadataIndex");
    pickle_.string("fqn");
    pickle_.string(item.key);
    if (item.is_tensor) {
      pickle_.string("offset");
      write_size(item.offsets);
    }
    pickle_.string("index");
    pickle_.none();
    end_instance();
    begin_instance(kFilesystemModule, "_StorageInfo");
    pickle_.string("relative_path");
    pickle_.string(item.file);
    pickle_.string("offset");
    pickle_.unsigned_integer(item.offset_bytes);
    pickle_.string("length");
    pickle_.unsigned_integer(item.length_bytes);
    end_instance();
  }

  PickleWriter pickle_;
};

}  // namespace

struct DcpShardWriter::Impl {
  Impl(const std::filesystem::path& directory, std::string file_name)
      : file(std::move(file_name)), sink(directory / file) {}

  DcpItem& add(std::string key, StatePath path, std::uint64_t offset_bytes) {
    if (finished) throw std::logic_error("DcpShardWriter: add after finish");
    auto& item = items.emplace_back();
    item.key = std::move(key);
    item.path = std::move(path);
    item.file = file;
    item.offset_bytes = offset_bytes;
    item.length_bytes = sink.position() - offset_bytes;
    return item;
  }

  std::string file;
  ByteSink sink;
  std::vector<DcpItem> items;
  bool finished = false;
};

DcpShardWriter::DcpShardWriter(const std::filesystem::path& directory, int rank)
    : impl_(std::make_unique<Impl>(directory, "__" + std::to_string(rank) + "_0.distcp")) {}
DcpShardWriter::~DcpShardWriter() = default;

void DcpShardWriter::add_value(const std::string& key, StatePath path, const nlohmann::json& value) {
  const auto begin = impl_->sink.position();
  write_value_blob(impl_->sink, value);
  impl_->add(key, std::move(path), begin);
}

void DcpShardWriter::add_tensor(const ShardRecord& record, StatePath path) {
  if (!block_is_inside({record.offsets, record.sizes}, record.global_shape) ||
      static_cast<std::uint64_t>(num_elements(record.sizes)) * dtype_size_bytes(record.dtype) != record.data.size()) {
    throw UsageError("tensor \"" + record.name + "\": the block to save does not fit its tensor or its data");
  }
  const auto begin = impl_->sink.position();
  write_tensor_blob(impl_->sink, record.dtype, record.sizes, record.data);
  auto& item = impl_->add(record.name, std::move(path), begin);
  item.is_tensor = true;
  item.dtype = record.dtype;
  item.global_shape = record.global_shape;
  item.offsets = record.offsets;
  item.sizes = record.sizes;
}

std::vector<DcpItem> DcpShardWriter::finish() {
  if (std::exchange(impl_->finished, true)) throw std::logic_error("DcpShardWriter: finished twice");
  impl_->sink.finish();
  return std::move(impl_->items);
}

std::uint64_t DcpShardWriter::bytes_written() const { return impl_->sink.position(); }
std::uint32_t DcpShardWriter::file_crc32() const { return impl_->sink.crc32(); }

std::string serialize_dcp_items(std::span<const DcpItem> items) {
  std::string out;
  for (const auto& item : items) {
    append_string(out, item.key);
    append_le(out, std::uint64_t{item.path.size()});
    for (const auto& part : item.path) {
      append_le(out, static_cast<std::uint8_t>(part.index()));
      if (const auto* position = std::get_if<std::int64_t>(&part)) {
        append_le(out, *position);
      } else {
        append_string(out, std::get<std::string>(part));
      }
    }
    append_le(out, static_cast<std::uint8_t>(item.is_tensor));
    append_string(out, torch_name(item.dtype));
    append_shape(out, item.global_shape);
    append_shape(out, item.offsets);
    append_shape(out, item.sizes);
    append_string(out, item.file);
    append_le(out, item.offset_bytes);
    append_le(out, item.length_bytes);
  }
  return out;
}

std::vector<DcpItem> deserialize_dcp_items(std::string_view bytes) {
  std::vector<DcpItem> items;
  for (ItemParser parser(bytes); !parser.at_end();) items.push_back(parse_item(parser));
  return items;
}

std::string dcp_metadata_bytes(const std::filesystem::path& directory, std::span<const DcpItem> items) {
  Groups groups;
  const auto path = directory / ".metadata";
  for (const auto& item : items) {
    inside_directory(directory, item.file, path);
    groups[item.key].push_back(&item);
  }
  for (auto& [key, group] : groups) {
    check_agreement(key, group);
    if (group.front()->is_tensor) check_tiling(key, group);
  }
  return MetadataWriter().write(groups);
}

void write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpItem> items) {
  replace_file(directory / ".metadata", dcp_metadata_bytes(directory, items));
  sync_directory(directory);
}

}  // namespace fsdp
