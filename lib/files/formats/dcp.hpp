#pragma once
// PyTorch's distributed checkpoint (DCP): a directory of `__<rank>_<n>.distcp` data files, each a concatenation of
// torch.save archives, and `.metadata`, a pickle that says where every block of every tensor lies.
// Layout source: torch 2.11 torch/distributed/checkpoint/{filesystem,metadata}.py.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/base/dtype.hpp"
#include "lib/files/formats/shard_record.hpp"

namespace fsdp {

/// Where a flattened key lies in the nested dict it came from; integers are list positions. Torch's `planner_data`.
using StatePath = std::vector<std::variant<std::string, std::int64_t>>;

/// Where one tensor block or one value was written; what ranks send to the rank that writes `.metadata`.
struct DcpItem {
  std::string key;
  StatePath path;
  bool is_tensor = false;
  DType dtype = DType::f32;  ///< tensors only, like the three shapes
  Shape global_shape, offsets, sizes;
  std::string file;  ///< relative to the checkpoint's directory
  std::uint64_t offset_bytes = 0, length_bytes = 0;
};

/// Writes DIRECTORY/__<rank>_0.distcp, from a single thread. Nothing of a tensor's data is copied or kept.
class DcpShardWriter {
 public:
  /// The directory must exist. \throws IoError
  DcpShardWriter(const std::filesystem::path& directory, int rank);
  ~DcpShardWriter();
  DcpShardWriter(const DcpShardWriter&) = delete;
  DcpShardWriter& operator=(const DcpShardWriter&) = delete;

  /// A python value: torch.load gives it back as None, bool, int, float, str, list or dict.
  void add_value(const std::string& key, StatePath path, const nlohmann::json& value);
  /// A block of the tensor `record.name`; `record.data` is read during the call only.
  /// \throws UsageError when the block lies outside its tensor or `data` has the wrong length
  void add_tensor(const ShardRecord& record, StatePath path);
  /// Syncs and closes the file; must be called once, after the last item. \throws IoError on a full disk
  std::vector<DcpItem> finish();

  std::uint64_t bytes_written() const;  ///< length of the data file
  std::uint32_t file_crc32() const;     ///< CRC-32 (zlib) of the whole data file

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Item lists as bytes, to travel between ranks of one build of this library. Not a file format.
std::string serialize_dcp_items(std::span<const DcpItem> items);
/// \throws FormatError when `bytes` is not what serialize_dcp_items wrote
std::vector<DcpItem> deserialize_dcp_items(std::string_view bytes);

/// The bytes of `.metadata`, as write_dcp_metadata() writes them; `directory` is for messages.
std::string dcp_metadata_bytes(const std::filesystem::path& directory, std::span<const DcpItem> items);

/// Writes DIRECTORY/.metadata from the items of all ranks: synced, then renamed into place.
/// Blocks of one tensor must tile it: equal dtype and shape, no holes, no overlap; empty blocks may repeat.
/// \throws UsageError naming the key where they do not; IoError
void write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpItem> items);

/// What `.metadata` says about one tensor.
struct DcpTensor {
  struct Chunk {
    Shape offsets, sizes;
    std::string file;  ///< relative path, checked to stay inside the directory
    std::uint64_t offset_bytes = 0, length_bytes = 0;
    bool zstd = false;  ///< those bytes are one zstd stream of the item
  };
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Chunk> chunks;  ///< in the writer's order, which need not be that of the offsets
};

/// What `.metadata` says about one python value.
struct DcpValue {
  std::string file;
  std::uint64_t offset_bytes = 0, length_bytes = 0;
  bool zstd = false;
};

/// Everything `.metadata` says.
struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpValue> values;
  std::optional<std::map<std::string, StatePath>> paths;  ///< absent in checkpoints of torch 1.13
  std::vector<std::string> keys;                          ///< of tensors and values, in the file's order
  std::string producer;                                   ///< what wrote it, as far as the classes tell
};

/// Reads and validates DIRECTORY/.metadata as torch 1.13 to 2.11 write it, or the one metadata file per rank of
/// use_collectives=False. Where the data files are safetensors, all items' offsets are 0.
/// \throws FormatError for anything else, with the reason; IoError
DcpMetadata read_dcp_metadata(const std::filesystem::path& directory);

}  // namespace fsdp
