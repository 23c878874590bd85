#pragma once
// PyTorch's distributed checkpoint (DCP): a directory of data files `__<rank>_<n>.distcp`, each a concatenation of
// torch.save archives, and the pickle `.metadata`, which says where every block of every tensor lies.
// Format: torch 2.15 torch/distributed/checkpoint/{filesystem,metadata}.py.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

/// The place of one tensor block or one value. Ranks send these to the rank that writes `.metadata`.
struct DcpItem {
  std::string key;
  StatePath path = {};
  bool is_tensor = false;
  DType dtype = DType::f32;  ///< like the three shapes, for tensors only
  Shape global_shape = {}, offsets = {}, sizes = {};
  std::string file = {};  ///< relative to the checkpoint directory
  std::uint64_t offset_bytes = 0, length_bytes = 0;
};

/// "__<rank>_0.distcp": the data file of a rank.
std::string dcp_file_name(std::size_t rank);

/// Writes DIRECTORY/__<rank>_0.distcp. Not thread-safe. Tensor data is neither copied nor kept.
class DcpShardWriter {
 public:
  /// The directory must exist. \throws IoError
  DcpShardWriter(const std::filesystem::path& directory, int rank);

  /// Adds a python value, which torch.load returns as None, bool, int, float, str, list or dict.
  void add_value(const std::string& key, StatePath path, const nlohmann::json& value);
  /// Adds a block of the tensor `record.name`; `record.data` is read during the call only.
  /// \throws std::invalid_argument when the block lies outside its tensor or `data` has the wrong length
  void add_tensor(const ShardRecord& record, StatePath path);
  /// Syncs and closes the file. Must be called once, after the last item. \throws IoError on a full disk
  std::vector<DcpItem> finish();

  std::uint64_t bytes_written() const { return sink_.position(); }  ///< length of the data file
  std::uint32_t file_crc32() const { return sink_.crc32(); }        ///< CRC-32 (zlib) of the whole data file

 private:
  DcpItem& add(std::string key, StatePath path, std::uint64_t length_bytes);

  std::string file_;
  ByteSink sink_;
  std::vector<DcpItem> items_;
  bool finished_ = false;
};

/// Serializes items to send them to another rank of the same build. This is no file format.
std::string serialize_dcp_items(std::span<const DcpItem> items);
/// \throws FormatError when `bytes` is not what serialize_dcp_items wrote
std::vector<DcpItem> deserialize_dcp_items(std::string_view bytes);

/// The bytes of the `.metadata` that write_dcp_metadata() writes; `directory` is for messages.
std::string dcp_metadata_bytes(const std::filesystem::path& directory, std::span<const DcpItem> items);

/// Writes DIRECTORY/.metadata from the items of all ranks: syncs a temporary file and renames it.
/// The blocks of one tensor must have one dtype and global shape and tile the tensor without holes or overlap; empty
/// blocks may repeat.
/// \throws std::invalid_argument naming the key of a tensor whose blocks do not; IoError
void write_dcp_metadata(const std::filesystem::path& directory, std::span<const DcpItem> items);

/// The entry of one tensor in `.metadata`.
struct DcpTensor {
  struct Chunk {
    Shape offsets, sizes;
    std::string file;  ///< relative to the checkpoint directory, and checked to stay inside it
    std::uint64_t offset_bytes = 0, length_bytes = 0;
    bool zstd = false;  ///< the bytes are one zstd stream of the item
  };
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Chunk> chunks;  ///< in the order of the writer, which need not be the order of the offsets
};

/// The entry of one python value in `.metadata`.
struct DcpValue {
  std::string file;
  std::uint64_t offset_bytes = 0, length_bytes = 0;
  bool zstd = false;
};

/// The content of `.metadata`.
struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpValue> values;
  std::optional<std::map<std::string, StatePath>> paths;  ///< absent in checkpoints of torch 1.13
  std::vector<std::string> keys;                          ///< of tensors and values, in the order of the file
  std::string producer;                                   ///< what wrote the checkpoint, as far as the class names tell
  std::set<std::string> unknown;  ///< fields that no known version of torch writes: "ChunkStorageMetadata.codec"
};

/// Reads and validates DIRECTORY/.metadata as torch 1.13 to 2.15 write it, or the metadata files of all ranks that
/// use_collectives=False leaves. Where the data files are safetensors, the offset of every item is 0.
/// \throws FormatError with the reason for anything else; IoError
DcpMetadata read_dcp_metadata(const std::filesystem::path& directory);

}  // namespace fsdp
