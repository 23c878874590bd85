#include "lib/files/read/zstd_stream.hpp"

#include <zstd.h>

#include <algorithm>
#include <new>
#include <string>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {
constexpr int max_window_log = 25;  // 32 MiB; torch writes 2 MiB, a frame may ask for gigabytes
constexpr std::size_t input_bytes = 256u << 10;
}  // namespace

struct ZstdStream::Context {
  Context() : stream(ZSTD_createDStream()) {
    if (stream == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, max_window_log);
  }
  ~Context() { ZSTD_freeDStream(stream); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ZSTD_DStream* stream;
};

ZstdStream::ZstdStream(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : file_(file), next_bytes_(begin_bytes), end_bytes_(begin_bytes), context_(std::make_unique<Context>()) {
  const std::uint64_t file_bytes = file.size_bytes();
  if (begin_bytes > file_bytes || length_bytes > file_bytes - begin_bytes) {
    throw FormatError(file.path().string(), begin_bytes,
                      "an item of " + std::to_string(length_bytes) + " bytes should lie here, but the file has " +
                          std::to_string(file_bytes) + " bytes; it was cut short, or belongs to another checkpoint");
  }
  end_bytes_ += length_bytes;
}

ZstdStream::~ZstdStream() = default;

std::size_t ZstdStream::read(std::span<std::byte> out) {
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  while (output.pos < output.size) {
    if (input_begin_ == input_end_ && next_bytes_ < end_bytes_) {
      input_.resize(input_bytes);
      input_end_ = std::min<std::uint64_t>(input_bytes, end_bytes_ - next_bytes_);
      input_begin_ = 0;
      file_.read_at(next_bytes_, std::span(input_).first(input_end_));
      next_bytes_ += input_end_;
    }
    const bool no_input = input_begin_ == input_end_;
    if (no_input && !frame_is_open_) break;
    ZSTD_inBuffer input{input_.data(), input_end_, input_begin_};
    const std::size_t before = output.pos;
    const std::size_t result = ZSTD_decompressStream(context_->stream, &output, &input);
    const std::uint64_t offset = next_bytes_ - (input_end_ - input.pos);
    if (ZSTD_isError(result) != 0) {
      throw FormatError(file_.path().string(), offset,
                        std::string("the zstd data cannot be decompressed: ") + ZSTD_getErrorName(result));
    }
    input_begin_ = input.pos;
    frame_is_open_ = result != 0;
    if (no_input && output.pos == before && frame_is_open_) {
      throw FormatError(file_.path().string(), offset, "the zstd data ends in the middle of a frame");
    }
  }
  return output.pos;
}

}  // namespace fsdp
