#pragma once
// Decompresses a part of a file front to back, with memory for the stream's window only.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/file.hpp"

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

}  // namespace fsdp
