#pragma once
// What all readers share: tensors that lie in one or several blocks, each row-major on its own.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/files/formats/block.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

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
