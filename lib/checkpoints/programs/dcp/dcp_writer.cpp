// Writes DCP data files, and `.metadata` as torch 2.11 does, with the opcodes of pickle protocol 2.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/inside_directory.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/torch_blob_writer.hpp"

namespace fsdp {
namespace {

/// Strings, shapes and paths.
template <typename T>
concept List = requires(T list) {
  list.resize(list.size());
};

struct ItemWriter {
  std::string bytes;

  void operator()(const auto& plain) { bytes.append(reinterpret_cast<const char*>(&plain), sizeof(plain)); }
  void operator()(const StatePath::value_type& part) {
    (*this)(part.index());
    std::visit(*this, part);
  }
  void operator()(const List auto& list) {
    (*this)(list.size());
    for (const auto& element : list) (*this)(element);
  }
};

/// Reads back what ItemWriter wrote. \throws FormatError when the bytes end too early
struct ItemReader {
  std::string_view rest;

  void take(void* to, std::size_t count) {
    if (count > rest.size()) throw FormatError("a list of DCP items is cut off");
    rest.copy(static_cast<char*>(to), count);
    rest.remove_prefix(count);
  }
  void operator()(auto& plain) { take(&plain, sizeof(plain)); }
  void operator()(StatePath::value_type& part) {
    std::size_t index = 0;
    (*this)(index);
    if (index != 0) part = std::int64_t{};
    std::visit(*this, part);
  }
  void operator()(List auto& list) {
    std::size_t size = 0;
    (*this)(size);
    if (size > rest.size()) throw FormatError("a list of DCP items is cut off");
    list.resize(size);
    for (auto& element : list) (*this)(element);
  }
};

void visit_fields(auto& item, auto& visit) {
  visit(item.key), visit(item.path), visit(item.is_tensor), visit(item.dtype);
  visit(item.global_shape), visit(item.offsets), visit(item.sizes);
  visit(item.file), visit(item.offset_bytes), visit(item.length_bytes);
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
      throw std::invalid_argument("checkpoint item \"" + key + "\" was written twice");
    }
    if (item->dtype != first.dtype || item->global_shape != first.global_shape) {
      throw std::invalid_argument("tensor \"" + key + "\": two ranks disagree about its type or shape");
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
    throw std::invalid_argument("tensor \"" + key + "\" cannot be saved: " + *problem);
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

std::string dcp_file_name(std::size_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

DcpShardWriter::DcpShardWriter(const std::filesystem::path& directory, int rank)
    : file_(dcp_file_name(static_cast<std::size_t>(rank))), sink_(directory / file_) {}

DcpItem& DcpShardWriter::add(std::string key, StatePath path, std::uint64_t length_bytes) {
  if (finished_) throw std::logic_error("DcpShardWriter: add after finish");
  return items_.emplace_back(DcpItem{.key = std::move(key),
                                     .path = std::move(path),
                                     .file = file_,
                                     .offset_bytes = sink_.position() - length_bytes,
                                     .length_bytes = length_bytes});
}

void DcpShardWriter::add_value(const std::string& key, StatePath path, const nlohmann::json& value) {
  add(key, std::move(path), write_value_blob(sink_, value));
}

void DcpShardWriter::add_tensor(const ShardRecord& record, StatePath path) {
  if (!block_is_inside({record.offsets, record.sizes}, record.global_shape) ||
      element_count(record.sizes) * dtype_size_bytes(record.dtype) != record.data.size()) {
    throw std::invalid_argument("tensor \"" + record.name +
                                "\": the block to save does not fit its tensor or its data");
  }
  auto& item = add(record.name, std::move(path), write_tensor_blob(sink_, record.dtype, record.sizes, record.data));
  item.is_tensor = true;
  item.dtype = record.dtype;
  item.global_shape = record.global_shape;
  item.offsets = record.offsets;
  item.sizes = record.sizes;
}

std::vector<DcpItem> DcpShardWriter::finish() {
  if (std::exchange(finished_, true)) throw std::logic_error("DcpShardWriter: finished twice");
  sink_.finish();
  return std::move(items_);
}

std::string serialize_dcp_items(std::span<const DcpItem> items) {
  ItemWriter writer;
  for (const auto& item : items) visit_fields(item, writer);
  return std::move(writer.bytes);
}

std::vector<DcpItem> deserialize_dcp_items(std::string_view bytes) {
  std::vector<DcpItem> items;
  for (ItemReader reader{bytes}; !reader.rest.empty();) visit_fields(items.emplace_back(), reader);
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
