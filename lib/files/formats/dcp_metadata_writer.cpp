// Writes `.metadata` as torch 2.11 does, with protocol 2 opcodes.
#include <algorithm>
#include <map>
#include <set>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/dcp_tiling.hpp"
#include "lib/files/formats/inside_directory.hpp"
#include "lib/files/formats/pickle_writer.hpp"

namespace fsdp {
namespace {

constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata";
constexpr std::string_view filesystem_module = "torch.distributed.checkpoint.filesystem";

/// The items of each key; once checked, the offsets within one differ.
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

/// Torch finds chunks by their offsets: an empty block is dropped where another has the same.
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
    begin_instance(metadata_module, "Metadata");
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
      pickle_.global(metadata_module, "BytesStorageMetadata");
      pickle_.empty_tuple();
      pickle_.new_object();
      return;
    }
    begin_instance(metadata_module, "TensorStorageMetadata");
    pickle_.string("properties");
    write_properties(group.front()->dtype);
    pickle_.string("size");
    write_size(group.front()->global_shape);
    pickle_.string("chunks");
    pickle_.empty_list();
    pickle_.mark();
    for (const auto* item : group) {
      begin_instance(metadata_module, "ChunkStorageMetadata");
      pickle_.string("offsets");
      write_size(item->offsets);
      pickle_.string("sizes");
      write_size(item->sizes);
      end_instance();
    }
    pickle_.append_items();
    end_instance();
  }

  /// State: (dtype, layout, requires_grad, memory format, pin_memory).
  void write_properties(DType dtype) {
    pickle_.global(metadata_module, "TensorProperties");
    pickle_.empty_tuple();
    pickle_.new_object();
    pickle_.mark();
    pickle_.global("torch", torch_name(dtype));
    pickle_.global("torch.serialization", "_get_layout");
    pickle_.string("torch.strided");
    pickle_.tuple1();
    pickle_.reduce();
    pickle_.boolean(false);
    pickle_.global(metadata_module, "_MEM_FORMAT_ENCODING");
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
    begin_instance(metadata_module, "MetadataIndex");
    pickle_.string("fqn");
    pickle_.string(item.key);
    if (item.is_tensor) {
      pickle_.string("offset");
      write_size(item.offsets);
    }
    pickle_.string("index");
    pickle_.none();
    end_instance();
    begin_instance(filesystem_module, "_StorageInfo");
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
