#pragma once
// Files of torch.save as a source, each a zip archive, or (before PyTorch 1.6 and on request) pickles followed by raw
// storages: one file, or the shards of a model.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

class TorchFile;
struct TorchStorage;

class TorchSource : public ChunkedSource {
 public:
  /// Reads everything but the storages. \param may_lack_tensors  as in flatten() \throws FormatError, IoError
  explicit TorchSource(const std::filesystem::path& path, bool may_lack_tensors = false);
  /// \param path  a directory for which is_torch_directory() is true, or an index \throws as above, and as read_index()
  static std::unique_ptr<TorchSource> of_model(const std::filesystem::path& path);
  ~TorchSource() override;

  LoadedValue value(std::size_t value) const override;
  /// The view of a tensor into its storage, and the number of the storage, which is equal for tensors that share memory
  /// (tied).
  const TensorView& view(std::size_t tensor) const { return views_.at(tensor); }
  std::uint32_t storage_number(std::size_t tensor) const { return storages_.at(tensor); }

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool chunk_prefers_whole(ChunkNumber chunk) const override { return !views_[chunk].is_contiguous(); }
  std::optional<RecordedSum> recorded_sum(std::uint32_t storage) const override;

 private:
  TorchSource();
  void add_indexed(const std::filesystem::path& index, const std::string& whole);
  /// \param file_of  names of files by tensor; null: every tensor of the file counts \param indexed_as  the file's name
  void add_file(const std::filesystem::path& path, bool may_lack_tensors,
                const std::map<std::string, std::string>* file_of = nullptr, const std::string& indexed_as = {});
  /// The file that has a storage.
  const TorchFile& file_of(std::uint32_t storage) const { return *std::prev(files_.upper_bound(storage))->second; }
  TorchStorage stored(std::uint32_t storage) const;

  std::map<std::uint32_t, std::unique_ptr<const TorchFile>> files_;  // by the number of their first storage here
  std::uint32_t num_storages_ = 0;
  std::vector<TensorView> views_;        // by tensor; each tensor is one chunk
  std::vector<std::uint32_t> storages_;  // by tensor
  std::vector<LoadedValue> values_from_;
};

/// True for a directory with pytorch_model.bin, or with its shards and their index.
bool is_torch_directory(const std::filesystem::path& directory);

}  // namespace fsdp
