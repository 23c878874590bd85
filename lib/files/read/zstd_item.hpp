#pragma once
// Items of a DCP data file that were saved through the zstd extension: one torch.save archive each, compressed.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/formats/torch_blob.hpp"

namespace fsdp {

class ZstdStream {
 public:
  /// Bytes [begin, begin + length) of `file`, which must outlive it: one or more zstd frames.
  ZstdStream(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes);
  ~ZstdStream();
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  /// Fills as much of `out` as there is left and returns how much; less than all of it only at the end.
  /// \throws FormatError naming file and offset on damaged, truncated or too demanding frames; IoError
  std::size_t read(std::span<std::byte> out);

 private:
  struct Context;
  const File& file_;
  std::uint64_t next_bytes_, end_bytes_;
  std::unique_ptr<Context> context_;
  std::vector<std::byte> input_;
  std::size_t input_begin_ = 0, input_end_ = 0;
  bool frame_is_open_ = false;
};

struct ZstdItem {
  const File& file;
  std::uint64_t begin_bytes, length_bytes;  ///< of the compressed bytes
};

/// Decompresses the whole item once and copies elements [first, first + count) of its row-major tensor into `out`.
/// Archive and CRC-32 are checked in full. Needs memory for the stream and small buffers, for a view that is not
/// contiguous also for the storage.
/// \param check  gets the view before anything else is read; throws when it is not the one expected
/// \throws FormatError also when the item is longer than its tensor and an archive's overhead
void read_zstd_tensor(const ZstdItem& item, const std::function<void(const TensorView&)>& check, std::uint64_t first,
                      std::uint64_t count, std::span<std::byte> out);

/// The whole archive of a python value, decompressed. \throws FormatError also when it has more than `limit_bytes`
std::string read_zstd_archive(const ZstdItem& item, std::uint64_t limit_bytes);

}  // namespace fsdp
