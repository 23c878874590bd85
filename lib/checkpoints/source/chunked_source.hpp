#pragma once
// The base of all readers: data files that are opened when needed, and tensors that lie in one or several blocks, each
// row-major on its own.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

/// A block of a tensor as runs: pieces that are contiguous both in the block and in the tensor. Run k is elements [k *
/// run_length, (k + 1) * run_length) of the block; positions in the tensor ascend with k. Counts are in elements.
class ChunkRuns {
 public:
  /// The block must lie inside `shape` and have elements. Both arguments must outlive the object.
  ChunkRuns(const Block& block, const Shape& shape);

  std::uint64_t run_length() const { return run_length_; }
  std::uint64_t place(std::uint64_t run) const;
  /// The first run that reaches beyond `element` of the tensor; the number of runs when there is none.
  std::uint64_t first_reaching(std::uint64_t element) const;
  /// The first run that starts at `element` of the tensor or later; the number of runs when there is none.
  std::uint64_t first_from(std::uint64_t element) const;

 private:
  const Block& block_;
  std::size_t num_outer_ = 0;  // leading dims that number the runs
  Shape strides_;              // of the tensor
  std::uint64_t run_length_ = 1, num_runs_ = 1;
};

/// Const member functions may be called from several threads.
class FileSet {
 public:
  /// Returns the number of the file.
  std::uint32_t add(std::filesystem::path path);
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  /// Keeps at most 128 files open, besides those that callers hold. \throws IoError
  std::shared_ptr<const File> open(std::uint32_t number) const;

 private:
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const File>> open_;  // by number; null: closed
  mutable std::deque<std::uint32_t> order_;                // open files, oldest first
};

class ChunkedSource : public Source {
 public:
  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool prefers_whole(std::size_t tensor) const override;
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override;

 protected:
  /// Chunks are numbered across all tensors, in the order of add_tensor().
  using ChunkNumber = std::uint32_t;

  /// The CRC-32 of a storage as the checkpoint recorded it.
  struct RecordedSum {
    std::uint64_t size_bytes = 0;
    std::uint32_t crc32 = 0;
    std::string file, entry;        ///< for messages
    std::uint64_t begin_bytes = 0;  ///< offset in that file
  };

  /// Reads elements [first, first + count) of a chunk, row-major; `sums` and the result are those of Source::read().
  virtual std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                  std::span<std::byte> out, std::vector<ReadSum>* sums) const = 0;
  /// True when reading a range of the chunk costs about as much as reading all of it.
  virtual bool chunk_prefers_whole(ChunkNumber /*chunk*/) const { return false; }
  /// Nothing when the checkpoint has no CRC-32 for this storage.
  virtual std::optional<RecordedSum> recorded_sum(std::uint32_t /*storage*/) const { return std::nullopt; }

  /// \param blocks  the chunks of the tensor
  /// \throws FormatError, with `file` in the message, when the chunks do not tile the tensor
  void add_tensor(SourceTensor tensor, std::vector<Block> blocks, const std::string& file);
  const Block& block(ChunkNumber chunk) const { return blocks_[chunk]; }
  /// Checks that all names of tensors and values differ. \throws FormatError, with `file` in the message
  void check_names(const std::string& file) const;

 private:
  class RangeReader;

  std::vector<Block> blocks_;
  std::vector<std::size_t> first_chunk_{0};  // first chunk of each tensor, and the number of chunks
};

}  // namespace fsdp
