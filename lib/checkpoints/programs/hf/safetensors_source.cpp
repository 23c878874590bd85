// A source of safetensors: one file, a model directory, or the shards of PyTorch's HuggingFaceStorageWriter. A rank
// writes one shard, whose metadata (DCP_SHARDING_INFO) has the offsets of its blocks.
#include "lib/checkpoints/programs/hf/safetensors_source.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/programs/hf/model_files.hpp"
#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/safetensors.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1u << 20;
constexpr const char* kSuffix = ".safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kWholeName = "model.safetensors";
constexpr const char* kAdapterName = "adapter_model.safetensors";  // peft writes this name
constexpr const char* kShardingKey = "DCP_SHARDING_INFO";

/// True for ITEM_RANK.safetensors.
bool is_of_rank(const std::filesystem::path& file) {
  const auto name = file.stem().string();
  const auto digits = name.find_last_not_of("0123456789");
  return digits != std::string::npos && digits + 1 < name.size() && name[digits] == '_';
}

/// The offsets of the block of a rank, by tensor: {name: {"saved_offsets": [..]}}.
std::map<std::string, Shape> parse_sharding(const SafetensorsReader& reader) {
  const std::string file = reader.path().string();
  const auto json = parse_json_or_discard(reader.metadata().at(kShardingKey), file);
  if (!json.is_object()) throw FormatError(file, 8, "DCP_SHARDING_INFO is not a JSON object");
  std::map<std::string, Shape> offsets;
  for (const auto& [name, entry] : json.items()) {
    const auto saved = entry.is_object() ? entry.value("saved_offsets", nlohmann::json()) : nlohmann::json();
    Shape& shape = offsets[name];
    if (!saved.is_array()) throw FormatError(file, 8, "DCP_SHARDING_INFO has no saved_offsets for \"" + name + "\"");
    for (const auto& offset : saved) {
      if (!offset.is_number_integer() || offset < 0 || offset > std::int64_t{1} << 62) {
        throw FormatError(file, 8, "DCP_SHARDING_INFO of \"" + name + "\" holds an impossible offset");
      }
      shape.push_back(offset.get<std::int64_t>());
    }
  }
  return offsets;
}

class SafetensorsSource : public ChunkedSource {
 public:
  /// Reads headers only.
  /// \param path  a safetensors file, an index .json, or a directory for which is_safetensors_directory() is true
  /// \throws FormatError, IoError
  explicit SafetensorsSource(const std::filesystem::path& path);

  LoadedValue value(std::size_t value) const override;  ///< safetensors files have no values

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override;

 private:
  struct Piece {
    std::uint32_t file = 0;
    SafetensorsEntry entry;
    Shape offsets;
  };
  /// The pieces of a tensor while the files are being read.
  struct Gathered {
    std::string name;
    std::vector<Piece> pieces;
  };
  struct Stored {
    std::uint32_t file = 0;
    TensorInFile tensor;
  };

  /// \param indexed_as  the name of the file in `weight_map`; without a map every tensor of the file counts
  void add_file(const std::filesystem::path& path, const std::map<std::string, std::string>* weight_map = nullptr,
                const std::string& indexed_as = {});
  /// \param whole  as in read_index()
  void add_index(const std::filesystem::path& index, const std::string& whole);
  void add_adapter(const std::filesystem::path& file);
  void gather(const SafetensorsReader& reader, std::uint32_t file, const std::map<std::string, std::string>* weight_map,
              const std::string& indexed_as);
  void finish();

  FileSet files_;
  bool is_sharded_ = false;
  std::vector<Gathered> gathered_;
  std::map<std::string, std::size_t> gathered_by_name_;
  std::vector<Stored> chunks_;
};

SafetensorsSource::SafetensorsSource(const std::filesystem::path& path) {
  std::error_code ignored;
  info_.format = "safetensors";
  if (!std::filesystem::is_directory(path, ignored)) {
    info_.directory = path.parent_path().empty() ? "." : path.parent_path();
    if (path.extension() == ".json") {
      add_index(path, "");
    } else if (path.filename() == kAdapterName) {
      add_adapter(path);
    } else {
      add_file(path);
    }
  } else {
    info_.directory = path;
    if (is_deepspeed_folder(path))
      info_.remarks.push_back(path.string() +
                              ": DeepSpeed's own files are there, too, with float32 masters and the optimizer: to read "
                              "these, give the folder that \"latest\" names");
    if (std::filesystem::exists(path / kIndexName, ignored)) {
      add_index(path / kIndexName, kWholeName);
    } else if (std::filesystem::exists(path / kWholeName, ignored)) {
      add_file(path / kWholeName);  // the model: other files beside it are variants or leftovers
    } else {
      auto files = files_called(path, "model", kSuffix);
      if (files.empty()) files = files_called(path, "shard-", kSuffix);
      for (const auto& file : files) add_file(file);
      refuse_missing_shards(files);
      if (files.empty()) add_adapter(path / kAdapterName);
    }
  }
  finish();
}

/// Adds the weights of an adapter. adapter_config.json beside them describes the adapter; without it they are ordinary
/// tensors.
void SafetensorsSource::add_adapter(const std::filesystem::path& file) {
  add_file(file);
  const auto beside = file.parent_path() / "adapter_config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(beside, error)) return;
  const auto config = parse_json_or_discard(read_text_file(beside, kMaxConfigBytes), beside.string());
  if (config.is_object()) info_.adapter = json_text(config);
}

void SafetensorsSource::add_index(const std::filesystem::path& index, const std::string& whole) {
  const auto indexed = read_index(index, whole);
  for (const auto& [name, file] : indexed.files) add_file(file, &indexed.file_of, name);
  for (const auto& [tensor, file] : indexed.file_of) {
    if (!gathered_by_name_.contains(tensor)) {
      throw FormatError(index.string() + ": tensor \"" + tensor + "\" should be in " + file + " but is not");
    }
  }
}

void SafetensorsSource::add_file(const std::filesystem::path& path,
                                 const std::map<std::string, std::string>* weight_map, const std::string& indexed_as) {
  const SafetensorsReader reader(path);
  gather(reader, files_.add(path), weight_map, indexed_as);
  for (const auto& [key, text] : reader.metadata()) {
    if (key != kShardingKey) info_.metadata.emplace(key, text);
  }
}

void SafetensorsSource::gather(const SafetensorsReader& reader, std::uint32_t file,
                               const std::map<std::string, std::string>* weight_map, const std::string& indexed_as) {
  std::map<std::string, Shape> offsets;
  const bool sharded = reader.metadata().contains(kShardingKey);
  if (sharded) offsets = parse_sharding(reader);
  is_sharded_ = is_sharded_ || sharded;
  std::vector<std::string> unindexed;
  std::vector<std::pair<std::uint64_t, const std::string*>> order;
  for (const auto& [name, entry] : reader.tensors()) order.emplace_back(entry.begin, &name);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [begin, name] : order) {
    const SafetensorsEntry& entry = reader.tensors().at(*name);
    Shape at(entry.shape.size(), 0);
    if (weight_map != nullptr && !is_indexed(*name, *weight_map, reader.path(), indexed_as)) {
      unindexed.push_back(*name);
      continue;
    }
    if (const auto found = offsets.find(*name); found != offsets.end()) at = found->second;
    if (at.size() != entry.shape.size()) {
      throw FormatError(reader.path().string() + ": tensor \"" + *name +
                        "\" has another number of dims than its DCP_SHARDING_INFO");
    }
    const auto [place, is_new] = gathered_by_name_.emplace(*name, gathered_.size());
    if (is_new) gathered_.push_back({*name, {}});
    auto& pieces = gathered_[place->second].pieces;
    const auto same =
        std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.offsets == at; });
    if (same != pieces.end() && sharded && same->entry.shape == entry.shape) continue;  // every rank has all of it
    if (!pieces.empty() && (!sharded || pieces[0].entry.dtype != entry.dtype || same != pieces.end())) {
      throw FormatError(reader.path().string() + ": tensor \"" + *name + "\" is also in " +
                        files_.paths()[pieces[0].file].string() +
                        (is_of_rank(reader.path()) ? ": if ranks of torch-checkpointing wrote pieces, metadata.pkl, "
                                                     "which says where they lie, is missing"
                                                   : ""));
    }
    pieces.push_back({file, entry, std::move(at)});
  }
  if (!unindexed.empty()) info_.remarks.push_back(remark_of_unindexed(reader.path(), unindexed));
}

void SafetensorsSource::finish() {
  for (auto& [name, pieces] : gathered_) {
    SourceTensor tensor{.name = name,
                        .path = {name},
                        .dtype = pieces[0].entry.dtype,
                        .shape = pieces[0].entry.shape,
                        .num_shards = std::ssize(pieces)};
    tensor.other = pieces[0].entry.other;
    if (tensor.other && pieces.size() > 1)
      throw FormatError(info_.directory.string() + ": tensor \"" + name + "\" is in pieces of type " +
                        tensor.other->name + ", which are not put together here");
    std::vector<Block> blocks;
    for (auto& piece : pieces) {
      const std::string file = files_.paths()[piece.file].string();
      if (piece.offsets.size() != tensor.shape.size()) {
        throw FormatError(file + ": tensor \"" + name + "\" has another number of dims than in other files");
      }
      for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
        std::int64_t end = 0;
        if (__builtin_add_overflow(piece.offsets[dim], piece.entry.shape[dim], &end)) {
          throw FormatError(file + ": tensor \"" + name + "\" has an impossible size");
        }
        tensor.shape[dim] = std::max(tensor.shape[dim], end);
      }
      tensor.stored_bytes += piece.entry.end - piece.entry.begin;
      Stored stored;
      stored.file = piece.file;
      stored.tensor.storage_begin_bytes = piece.entry.begin;
      stored.tensor.view = contiguous_view(piece.entry.dtype, piece.entry.shape);
      stored.tensor.storage = static_cast<std::uint32_t>(chunks_.size());
      chunks_.push_back(std::move(stored));
      blocks.push_back({std::move(piece.offsets), std::move(piece.entry.shape)});
    }
    add_tensor(std::move(tensor), std::move(blocks), info_.directory.string());
  }
  gathered_.clear();
  gathered_by_name_.clear();
  info_.files = files_.paths();
  if (is_sharded_) {
    info_.format = "safetensors shards (DCP)";
    info_.producer = "PyTorch (HuggingFaceStorageWriter)";
    std::set<std::string> ranks;  // shard-<rank + 1>-model-<k>-of-<n>.safetensors
    for (const auto& file : info_.files) {
      const auto name = file.filename().string();
      ranks.insert(name.substr(0, name.find("-model")));
    }
    info_.world_size = static_cast<int>(ranks.size());
  }
}

LoadedValue SafetensorsSource::value(std::size_t /*value*/) const {
  throw std::logic_error("safetensors files hold no values");
}

std::optional<std::uint32_t> SafetensorsSource::read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                           std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const Stored& stored = chunks_[chunk];
  return read_stored(*files_.open(stored.file), stored.tensor, first, count, out, sums);
}

}  // namespace

bool is_safetensors_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  return std::filesystem::is_directory(directory, ignored) &&
         (std::filesystem::exists(directory / kIndexName, ignored) ||
          !files_called(directory, "model", kSuffix).empty() || !files_called(directory, "shard-", kSuffix).empty() ||
          std::filesystem::exists(directory / kAdapterName, ignored));
}

std::unique_ptr<Source> open_safetensors(const std::filesystem::path& path) {
  return std::make_unique<SafetensorsSource>(path);
}

}  // namespace fsdp
