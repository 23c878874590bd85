#pragma once
// What all readers share: data files that are opened when needed, and tensors that lie in one or several blocks, each
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

#include "lib/base/file.hpp"
#include "lib/files/formats/block.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

/// A block as runs: pieces that are contiguous both in the block and in the tensor. Run k is elements
/// [k * run_length, (k + 1) * run_length) of the block; places in the tensor ascend with k. Counts are in elements.
class ChunkRuns {
 public:
  /// The block lies inside `shape` and has elements. Both must outlive this.
  ChunkRuns(const Block& block, const Shape& shape);

  std::uint64_t run_length() const { return run_length_; }
  std::uint64_t place(std::uint64_t run) const;
  /// The first run that reaches past `element` of the tensor; one past the last run when there is none.
  std::uint64_t first_reaching(std::uint64_t element) const;
  /// The first run that starts at `element` or later, likewise.
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
  /// Returns the file's number.
  std::uint32_t add(std::filesystem::path path);
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  /// At most 128 files stay open, besides those that somebody holds. \throws IoError
  std::shared_ptr<const File> open(std::uint32_t number) const;

 private:
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const File>> open_;  // by number; null: closed
  mutable std::deque<std::uint32_t> order_;                // open ones, oldest first
};

class ChunkedSource : public Source {
 public:
  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool prefers_whole(std::size_t tensor) const override;
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override;

 protected:
  /// Chunks are numbered through all tensors in the order of add_tensor().
  using ChunkNumber = std::uint32_t;

  /// A storage's CRC-32 as the checkpoint recorded it.
  struct RecordedSum {
    std::uint64_t size_bytes = 0;
    std::uint32_t crc32 = 0;
    std::string file, entry;        ///< for messages
    std::uint64_t begin_bytes = 0;  ///< in that file
  };

  /// Elements [first, first + count) of a chunk, row-major; sums and result as for Source::read().
  virtual std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                  std::span<std::byte> out, std::vector<ReadSum>* sums) const = 0;
  /// True when a range of the chunk costs about as much as all of it.
  virtual bool chunk_prefers_whole(ChunkNumber /*chunk*/) const { return false; }
  /// Nothing when the checkpoint has none for this storage.
  virtual std::optional<RecordedSum> recorded_sum(std::uint32_t /*storage*/) const { return std::nullopt; }

  /// \param blocks  of the tensor's chunks. \throws FormatError, in the name of `file`, when they do not tile the
  /// tensor
  void add_tensor(SourceTensor tensor, std::vector<Block> blocks, const std::string& file);
  const Block& block(ChunkNumber chunk) const { return blocks_[chunk]; }
  /// Checks that no two tensors or values share a name. \throws FormatError, in the name of `file`
  void check_names(const std::string& file) const;

 private:
  class RangeReader;

  std::vector<Block> blocks_;
  std::vector<std::size_t> first_chunk_{0};  // of each tensor, and the end
};

}  // namespace fsdp
