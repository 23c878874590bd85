#pragma once
// A source of safetensors: one file, a model directory, or the shards of PyTorch's HuggingFaceStorageWriter. A rank
// writes one shard, whose metadata (DCP_SHARDING_INFO) has the offsets of its blocks.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/files/formats/safetensors.hpp"
#include "lib/files/read/chunked_source.hpp"
#include "lib/files/read/tensor_in_file.hpp"

namespace fsdp {

class SafetensorsSource : public ChunkedSource {
 public:
  /// Reads headers only.
  /// \param path  a safetensors file, an index .json, or a directory for which recognizes() is true
  /// \throws FormatError, IoError
  explicit SafetensorsSource(const std::filesystem::path& path);

  /// True for a directory with model.safetensors.index.json, model*.safetensors, shard-*.safetensors or
  /// adapter_model.safetensors.
  static bool recognizes(const std::filesystem::path& directory);

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
  void add_index(const std::filesystem::path& index);
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

}  // namespace fsdp
