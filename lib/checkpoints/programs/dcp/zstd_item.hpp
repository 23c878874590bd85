#pragma once
// Items of a DCP data file that were saved with the zstd extension: each is one compressed torch.save archive.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

class ZstdStream {
 public:
  /// Decompresses bytes [begin, begin + length) of `file`, one or more zstd frames. The file must outlive the stream.
  ZstdStream(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes);
  ~ZstdStream();
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  /// Fills `out` as far as data is left and returns the number of bytes, which is less than the size of `out` only at
  /// the end.
  /// \throws FormatError naming file and offset on frames that are damaged, truncated or need too much memory; IoError
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
  std::uint64_t begin_bytes, length_bytes;  ///< range of the compressed bytes
};

/// Decompresses the whole item once and copies elements [first, first + count) of its row-major tensor into `out`.
/// Checks the whole archive and its CRC-32. Needs memory for the stream and small buffers, and for a view that is not
/// contiguous also for the storage.
/// \param check  gets the view before anything else is read; throws when the view is not the expected one
/// \throws FormatError also when the item is longer than its tensor and the overhead of an archive
void read_zstd_tensor(const ZstdItem& item, const std::function<void(const TensorView&)>& check, std::uint64_t first,
                      std::uint64_t count, std::span<std::byte> out);

/// Decompresses the whole archive of a python value. \throws FormatError also when it has more than `limit_bytes`
std::string read_zstd_archive(const ZstdItem& item, std::uint64_t limit_bytes);

}  // namespace fsdp
