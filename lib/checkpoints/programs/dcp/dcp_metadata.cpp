// Reads `.metadata`. Source: torch 1.13 to 2.15 torch/distributed/checkpoint/metadata.py and filesystem.py.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/inside_directory.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"

namespace fsdp {
namespace {

std::optional<std::uint32_t> rank_of(const std::string& name) {
  constexpr std::string_view prefix = "__", suffix = ".metadata";
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return {};
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - suffix.size();
  std::uint32_t rank = 0;
  const auto [stop, error] = std::from_chars(begin, end, rank);
  return error == std::errc() && stop == end ? std::optional(rank) : std::nullopt;
}

void merge_tensor(DcpTensor& all, DcpTensor rank, const std::string& key, const std::string& file) {
  if (all.dtype != rank.dtype || all.shape != rank.shape) {
    throw FormatError(file + ": tensor \"" + key + "\" has another shape or type than in the files of lower ranks");
  }
  const std::size_t known = all.chunks.size();
  for (auto& chunk : rank.chunks) {
    const auto same = std::find_if(all.chunks.begin(), iterator_at(all.chunks, known),
                                   [&](const auto& other) { return other.offsets == chunk.offsets; });
    if (same == iterator_at(all.chunks, known)) {
      all.chunks.push_back(std::move(chunk));
    } else if (same->sizes != chunk.sizes) {
      throw FormatError(file + ": tensor \"" + key + "\" has a chunk of another size than in the files of lower ranks");
    }
  }
}

/// Lists the files `__<rank>.metadata` of `directory` by rank; empty when `directory` is no directory.
/// \throws FormatError when the file of a rank below the highest is missing
std::vector<std::filesystem::path> rank_metadata_files(const std::filesystem::path& directory) {
  std::vector<std::pair<std::uint32_t, std::filesystem::path>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto rank = rank_of(entry->path().filename().string())) found.emplace_back(*rank, entry->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::filesystem::path> files;
  for (const auto& [rank, path] : found) {
    if (rank != files.size()) {
      throw FormatError(directory.string() + ": has " + path.filename().string() + " but no __" +
                        std::to_string(files.size()) +
                        ".metadata; the checkpoint is not complete: copy the files of every rank");
    }
    files.push_back(path);
  }
  return files;
}

/// Adds the items of one rank. Items that every rank wrote (values, replicated tensors) are taken from the lowest rank.
/// \throws FormatError, with `file` in the message, when two ranks contradict each other
void merge_rank_metadata(DcpMetadata& all, DcpMetadata rank, const std::string& file) {
  for (auto& key : rank.keys) {
    const auto tensor = rank.tensors.find(key);
    const bool is_tensor = tensor != rank.tensors.end();
    if ((is_tensor && all.values.contains(key)) || (!is_tensor && all.tensors.contains(key))) {
      throw FormatError(file + ": \"" + key + "\" is a tensor in one rank's file and a value in another's");
    }
    if (is_tensor && all.tensors.contains(key)) {
      merge_tensor(all.tensors.at(key), std::move(tensor->second), key, file);
      continue;
    }
    if (!is_tensor && all.values.contains(key)) continue;
    if (is_tensor) {
      all.tensors.emplace(key, std::move(tensor->second));
    } else {
      all.values.emplace(key, rank.values.at(key));
    }
    all.keys.push_back(std::move(key));
  }
  if (rank.paths && !all.paths) all.paths.emplace();
  if (rank.paths) all.paths->merge(*rank.paths);
  if (all.producer.empty()) all.producer = rank.producer;
  all.unknown.merge(rank.unknown);
}

constexpr std::uint64_t kMaxMetadataBytes = 4ull << 30;

/// Modules that hold the metadata classes in one version of torch or another.
constexpr std::array<std::string_view, 5> kMetadataModules{
    "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem",
    "torch.distributed._shard.checkpoint.metadata", "torch.distributed._shard.checkpoint.filesystem",
    "torch.distributed._shard.sharded_tensor.metadata"};

/// The fields that torch 1.13 to 2.15 and Megatron-core (all_local_plans, mcore_data) write. Fields of a later version
/// are named to the user and passed over.
struct KnownFields {
  std::string_view type;
  std::array<std::string_view, 7> names;
};
constexpr std::array<KnownFields, 6> kKnownFields{
    {{"Metadata",
      {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "all_local_plans",
       "mcore_data"}},
     {"TensorStorageMetadata", {"properties", "size", "chunks"}},
     {"BytesStorageMetadata", {}},
     {"ChunkStorageMetadata", {"offsets", "sizes"}},
     {"MetadataIndex", {"fqn", "offset", "index"}},
     {"_StorageInfo", {"relative_path", "offset", "length", "transform_descriptors"}}}};
constexpr std::size_t kMostTensorProperties = 6;  ///< torch 2.15: dtype, layout, ..., strides of the local piece

/// Identifies a stored item: the key and, for tensors, the offsets of the chunk.
using StorageKey = std::tuple<std::string, bool, Shape>;

class MetadataParser {
 public:
  explicit MetadataParser(const std::filesystem::path& path)
      : path_(path),
        document_(read_pickle({.text = std::make_shared<const std::string>(read_text_file(path, kMaxMetadataBytes)),
                               .file = path.string()})) {
    if (document_.length_bytes != document_.text->size()) {
      throw FormatError(path.string(), document_.length_bytes, "more bytes follow the end of the metadata");
    }
  }

  DcpMetadata parse() {
    const auto& top = state_of(*document_.root, "Metadata");
    parse_storage(dict(field(top, "storage_data")));
    check_storage_ranges();
    const auto& entries = dict(field(top, "state_dict_metadata"));
    for (const auto& [key, entry] : entries.items) parse_entry(std::string(text(*key)), *entry);
    find_producer(top);
    const auto* planner_data = find(top, "planner_data");
    if (planner_data != nullptr && !planner_data->is_none()) parse_paths(dict(*planner_data));
    return std::move(metadata_);
  }

 private:
  struct Place {
    std::string file;
    std::uint64_t offset_bytes, length_bytes;
    bool zstd;
  };

  [[noreturn]] void fail(const PickleValue& at, const std::string& what) const {
    throw FormatError(path_.string(), at.offset_bytes, what);
  }

  /// Adds the file and offset to errors that `compute` throws.
  template <typename Compute>
  auto in_this_file(const PickleValue& at, Compute&& compute) const {
    try {
      return compute();
    } catch (const FormatError& error) {
      fail(at, error.what());
    }
  }

  // --- plain values ---
  const PickleDict& dict(const PickleValue& value) const {
    if (value.dict() == nullptr) fail(value, "a dict was expected, found " + describe(value));
    return *value.dict();
  }
  std::string_view text(const PickleValue& value) const {
    if (value.string() == nullptr) fail(value, "a str was expected, found " + describe(value));
    return value.string()->text;
  }
  std::int64_t count(const PickleValue& value) const {
    if (value.integer() == nullptr || *value.integer() < 0) {
      fail(value, "a size or offset was expected, found " + describe(value));
    }
    return *value.integer();
  }
  static PickleRef find(const PickleDict& fields, std::string_view name) {
    PickleRef found = nullptr;
    for (const auto& [key, item] : fields.items) {
      if (key->string() != nullptr && key->string()->text == name) found = item;
    }
    return found;
  }
  const PickleValue& field(const PickleDict& fields, std::string_view name) const {
    const auto* found = find(fields, name);
    if (found == nullptr) fail(*document_.root, "a field \"" + std::string(name) + "\" is missing");
    return *found;
  }

  // --- objects ---
  const PickleObject* instance(const PickleValue& value, std::string_view class_name) const {
    const auto* object = value.object();
    if (object == nullptr) return nullptr;
    const auto* name = object->callable->global();
    const bool known =
        std::find(kMetadataModules.begin(), kMetadataModules.end(), name->module) != kMetadataModules.end();
    return known && name->name == class_name ? object : nullptr;
  }
  const PickleDict& state_of(const PickleValue& value, std::string_view class_name) {
    const auto* object = instance(value, class_name);
    if (object == nullptr || object->state == nullptr || object->state->dict() == nullptr) {
      fail(value, "a DCP " + std::string(class_name) + " was expected, found " + describe(value));
    }
    note_unknown(*object->state->dict(), class_name);
    return *object->state->dict();
  }
  void note_unknown(const PickleDict& fields, std::string_view class_name) {
    constexpr std::size_t most = 20;  // names for a message
    const auto known = std::ranges::find(kKnownFields, class_name, &KnownFields::type);
    for (const auto& [key, item] : fields.items) {
      if (key->string() == nullptr || std::ranges::find(known->names, key->string()->text) != known->names.end())
        continue;
      if (metadata_.unknown.size() >= most) return;
      metadata_.unknown.insert(std::string(class_name) + "." + std::string(key->string()->text.substr(0, 100)));
    }
  }
  Shape shape(const PickleValue& value) const {
    const auto* object = value.object_of("torch", "Size");
    const auto* sizes = object != nullptr && object->args->tuple()->items.size() == 1
                            ? object->args->tuple()->items[0]->tuple()
                            : nullptr;
    if (sizes == nullptr || sizes->items.size() > kMaxDims)
      fail(value, "a torch.Size was expected, found " + describe(value));
    Shape shape;
    for (const auto item : sizes->items) shape.push_back(count(*item));
    return shape;
  }

  // --- storage_data ---
  void parse_storage(const PickleDict& entries) {
    for (const auto& [index, info] : entries.items) {
      const auto& identity = state_of(*index, "MetadataIndex");
      const auto* offset = find(identity, "offset");
      const bool is_tensor = offset != nullptr && !offset->is_none();
      StorageKey key(text(field(identity, "fqn")), is_tensor, is_tensor ? shape(*offset) : Shape());
      const auto& fields = state_of(*info, "_StorageInfo");
      const bool zstd = is_zstd(std::get<0>(key), find(fields, "transform_descriptors"));
      Place place{std::string(text(field(fields, "relative_path"))),
                  static_cast<std::uint64_t>(count(field(fields, "offset"))),
                  static_cast<std::uint64_t>(count(field(fields, "length"))), zstd};
      inside_directory({}, place.file, path_);
      if (!storage_.emplace(std::move(key), std::move(place)).second) fail(*index, "an item is stored twice");
    }
  }
  bool is_zstd(const std::string& item, PickleRef transforms) const {
    if (transforms == nullptr || transforms->is_none()) return false;
    const auto* list = transforms->list();
    if (list != nullptr && list->items.empty()) return false;
    const auto* name = list != nullptr && list->items.size() == 1 ? list->items[0]->string() : nullptr;
    if (name == nullptr || name->text != "stream.zstd/1") {
      fail(*transforms, "item \"" + item +
                            "\" is stored through an unknown extension (transform_descriptors); known is "
                            "stream.zstd/1 alone");
    }
    return true;
  }
  /// Checks that no two items share bytes, so that a damaged offset cannot point at another item unnoticed. Two names
  /// of one tied tensor may share all of their bytes: a whole archive each, which is longer than its tensor.
  void check_storage_ranges() const {
    std::vector<std::pair<const Place*, const StorageKey*>> places;
    for (const auto& [key, place] : storage_) {
      if (place.length_bytes > 0) places.emplace_back(&place, &key);
    }
    std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first->file, a.first->offset_bytes) < std::tie(b.first->file, b.first->offset_bytes);
    });
    for (std::size_t i = 1; i < places.size(); ++i) {
      const Place &before = *places[i - 1].first, &after = *places[i].first;
      const bool tied = before.file == after.file && before.offset_bytes == after.offset_bytes &&
                        before.length_bytes == after.length_bytes && std::get<1>(*places[i - 1].second) &&
                        std::get<1>(*places[i].second) &&
                        std::get<2>(*places[i - 1].second) == std::get<2>(*places[i].second);
      const bool safetensors = before.offset_bytes == 0 && after.offset_bytes == 0;
      if (tied || safetensors) continue;
      if (before.file == after.file && before.length_bytes > after.offset_bytes - before.offset_bytes) {
        throw FormatError(path_.string() + ": items \"" + std::get<0>(*places[i - 1].second) + "\" and \"" +
                          std::get<0>(*places[i].second) + "\" share bytes of " + before.file +
                          ": .metadata is damaged");
      }
    }
  }
  const Place& stored_place(const PickleValue& at, const StorageKey& key) const {
    const auto found = storage_.find(key);
    if (found == storage_.end()) fail(at, "nothing says where item \"" + std::get<0>(key) + "\" is stored");
    return found->second;
  }

  // --- state_dict_metadata ---
  void parse_entry(const std::string& key, const PickleValue& entry) {
    if (metadata_.tensors.contains(key) || metadata_.values.contains(key))
      fail(entry, "key \"" + key + "\" occurs twice");
    metadata_.keys.push_back(key);
    if (const auto* bytes = instance(entry, "BytesStorageMetadata")) {
      if (bytes->state != nullptr && bytes->state->dict() != nullptr)
        note_unknown(*bytes->state->dict(), "BytesStorageMetadata");
      const auto& place = stored_place(entry, {key, false, {}});
      metadata_.values[key] = {.file = place.file,
                               .offset_bytes = place.offset_bytes,
                               .length_bytes = place.length_bytes,
                               .zstd = place.zstd};
      return;
    }
    const auto& fields = state_of(entry, "TensorStorageMetadata");
    DcpTensor& tensor = metadata_.tensors[key];
    tensor.dtype = dtype_of(field(fields, "properties"));
    tensor.shape = shape(field(fields, "size"));
    in_this_file(entry, [&] { return num_elements(tensor.shape); });  // throws when the number overflows
    const auto& chunks = field(fields, "chunks");
    if (chunks.list() == nullptr) fail(chunks, "a list was expected, found " + describe(chunks));
    for (const auto chunk : chunks.list()->items) tensor.chunks.push_back(parse_chunk(key, tensor.shape, *chunk));
  }
  DType dtype_of(const PickleValue& properties) {
    const auto* object = instance(properties, "TensorProperties");
    const auto* state = object != nullptr && object->state != nullptr ? object->state->tuple() : nullptr;
    if (state == nullptr || state->items.empty() || state->items[0]->global() == nullptr ||
        state->items[0]->global()->module != "torch") {
      fail(properties, "a DCP TensorProperties was expected, found " + describe(properties));
    }
    if (state->items.size() > kMostTensorProperties)
      metadata_.unknown.insert("TensorProperties[" + std::to_string(kMostTensorProperties) + "]");
    return in_this_file(properties, [&] { return dtype_from_torch(state->items[0]->global()->name); });
  }
  DcpTensor::Chunk parse_chunk(const std::string& key, const Shape& tensor_shape, const PickleValue& value) {
    const auto& fields = state_of(value, "ChunkStorageMetadata");
    DcpTensor::Chunk chunk;
    chunk.offsets = shape(field(fields, "offsets"));
    chunk.sizes = shape(field(fields, "sizes"));
    if (!block_is_inside({chunk.offsets, chunk.sizes}, tensor_shape)) {
      fail(value, "a chunk of tensor \"" + key + "\" lies outside the tensor");
    }
    const auto& place = stored_place(value, {key, true, chunk.offsets});
    chunk.file = place.file;
    chunk.offset_bytes = place.offset_bytes;
    chunk.length_bytes = place.length_bytes;
    chunk.zstd = place.zstd;
    return chunk;
  }

  /// Tells the version of torch by the modules of the classes. Source: torch 1.13, 2.0, 2.4 and 2.11,
  /// torch/distributed/checkpoint.
  void find_producer(const PickleDict& top) {
    const auto* version = find(top, "version");
    if (document_.root->object()->callable->global()->module == "torch.distributed._shard.checkpoint.metadata") {
      metadata_.producer = "PyTorch 1.13";
    } else if (version != nullptr && version->string() != nullptr) {
      metadata_.producer = "PyTorch 2.4 or later (DCP " + std::string(version->string()->text.substr(0, 40)) + ")";
    } else {
      metadata_.producer = find(top, "storage_meta") != nullptr ? "PyTorch 2.3 or later" : "PyTorch 2.0 to 2.2";
    }
  }

  // --- planner_data ---
  void parse_paths(const PickleDict& entries) {
    auto& paths = metadata_.paths.emplace();
    for (const auto& [key, value] : entries.items) {
      if (value->tuple() == nullptr) fail(*value, "a path was expected, found " + describe(*value));
      StatePath path;
      for (const auto part : value->tuple()->items) {
        if (part->string() != nullptr) {
          path.emplace_back(std::string(part->string()->text));
        } else {
          path.emplace_back(count(*part));
        }
      }
      if (!paths.emplace(text(*key), std::move(path)).second) fail(*key, "a path occurs twice");
    }
  }

  std::filesystem::path path_;
  PickleDocument document_;
  std::map<StorageKey, Place> storage_;
  DcpMetadata metadata_;
};

}  // namespace

DcpMetadata read_dcp_metadata(const std::filesystem::path& directory) {
  const auto path = directory / ".metadata";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return MetadataParser(path).parse();
  const auto rank_files = rank_metadata_files(directory);
  if (rank_files.empty()) {
    throw FormatError(directory.string() + ": is not a DCP checkpoint: it has no .metadata" +
                      (std::filesystem::is_directory(directory, ignored) ? "; a save may have been cut short"
                                                                         : " because it is not a directory"));
  }
  DcpMetadata all;
  for (const auto& file : rank_files) {
    merge_rank_metadata(all, MetadataParser(file).parse(), file.string());
  }
  return all;
}

}  // namespace fsdp
