#include "lib/documents/unpacked_file.hpp"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <new>
#include <span>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

constexpr std::uint64_t kBlock_bytes = 1 << 20;
/// A frame says how far back its data may refer, and the decoder asks for that much memory, of which the system gives
/// what the data fill. 128 MiB is the most that zstd writes and reads unless it is told otherwise.
constexpr int kMostWindowLog = 27;
constexpr std::string_view kGzip = "\x1f\x8b", kZstd = "\x28\xb5\x2f\xfd";

/// A file of zstd may begin with a frame to be skipped, which holds notes, as those of pzstd do. Source: RFC
/// 8878, 3.1.2
bool is_zstd(std::string_view head) {
  constexpr std::string_view rest = "\x2a\x4d\x18";
  const bool skippable = head.size() > 3 && (head[0] & 0xf0) == 0x50 && head.substr(1, 3) == rest;
  return head.starts_with(kZstd) || skippable;
}

}  // namespace

bool is_packed(std::string_view head) { return head.starts_with(kGzip) || is_zstd(head); }

class UnpackedFile::Unpacker {
 public:
  virtual ~Unpacker() = default;
  /// Unpacks from the front of `packed`, which it shortens, into `out`. \return the number of bytes written
  virtual std::size_t unpack(std::string_view& packed, std::span<char> out) = 0;
  /// True between two streams: the file may end here.
  bool may_end = true;

 protected:
  [[noreturn]] static void fail(const std::string& problem) { throw FormatError(problem); }
};

class UnpackedFile::Gzip : public Unpacker {
 public:
  Gzip() {
    constexpr int gzip_window = 15 + 16;
    if (inflateInit2(&stream_, gzip_window) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  std::size_t unpack(std::string_view& packed, std::span<char> out) override {
    if (may_end) {
      while (packed.starts_with('\0')) packed.remove_prefix(1);  // padding, as of tapes
      if (packed.empty()) return 0;
      inflateReset(&stream_);
      may_end = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    packed.remove_prefix(packed.size() - stream_.avail_in);
    if (result == Z_STREAM_END) may_end = true;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(std::string("the gzip data is damaged: ") + (stream_.msg != nullptr ? stream_.msg : "no stream"));
    return out.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
};

class UnpackedFile::Zstd : public Unpacker {
 public:
  Zstd() : context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMostWindowLog);
  }

  std::size_t unpack(std::string_view& packed, std::span<char> out) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer made{out.data(), out.size(), 0};
    const auto result = ZSTD_decompressStream(context_.get(), &made, &in);
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
      fail("the zstd data need more than " + std::to_string((1 << kMostWindowLog) >> 20) +
           " MiB of memory to unpack (made with zstd --long=28 or more): unpack the file first (zstd -d --long=31)");
    if (ZSTD_isError(result) != 0) fail(std::string("the zstd data is damaged: ") + ZSTD_getErrorName(result));
    packed.remove_prefix(in.pos);
    may_end = result == 0;
    return made.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context_;
};

UnpackedFile::UnpackedFile(const std::filesystem::path& file, std::uint64_t begin)
    : file_(File::open_read(file)), size_(file_.size_bytes()), offset_(std::min(begin, size_)) {
  refill();
  if (begin > 0) return;
  if (rest_.starts_with(kGzip)) unpacker_ = std::make_unique<Gzip>();
  if (is_zstd(rest_)) unpacker_ = std::make_unique<Zstd>();
}

UnpackedFile::~UnpackedFile() = default;

bool UnpackedFile::refill() {
  const auto count = std::min(kBlock_bytes, size_ - offset_);
  packed_.resize(count);
  file_.read_at(offset_, std::as_writable_bytes(std::span(packed_)));
  offset_ += count;
  rest_ = packed_;
  return count > 0;
}

bool UnpackedFile::read(std::string& block) {
  if (!unpacker_) {
    if (rest_.empty() && !refill()) {
      block.clear();
      return false;
    }
    block.assign(rest_);
    rest_ = {};
    return true;
  }
  block.resize(kBlock_bytes);
  std::size_t count = 0;
  while (count == 0) {
    if (rest_.empty() && !refill()) {
      // The unpacker may hold bytes that it can write without further input.
      try {
        count = unpacker_->may_end ? 0 : unpacker_->unpack(rest_, block);
      } catch (const FormatError& error) {
        throw FormatError(path().string() + ": " + error.what());
      }
      if (count > 0) break;
      block.clear();
      if (unpacker_->may_end) return false;
      throw FormatError(path().string() + ": the compressed data ends early; was it copied whole?");
    }
    try {
      count = unpacker_->unpack(rest_, block);
    } catch (const FormatError& error) {
      throw FormatError(path().string() + ": at byte " + std::to_string(bytes_read()) + ": " + error.what());
    }
  }
  block.resize(count);
  return true;
}

}  // namespace fsdp::detail
