#pragma once
// A file of torch.save as a source: a zip archive, or (before PyTorch 1.6 and on request) pickles followed by raw
// storages.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "lib/files/formats/torch_blob.hpp"
#include "lib/files/read/chunked_source.hpp"

namespace fsdp {

class TorchFile;

class TorchSource : public ChunkedSource {
 public:
  /// Reads everything but the storages. \param may_lack_tensors  as in flatten() \throws FormatError, IoError
  explicit TorchSource(const std::filesystem::path& path, bool may_lack_tensors = false);
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
  std::unique_ptr<const TorchFile> torch_;
  std::vector<TensorView> views_;        // by tensor; each tensor is one chunk
  std::vector<std::uint32_t> storages_;  // by tensor
  std::vector<PickleRef> values_from_;
};

}  // namespace fsdp
