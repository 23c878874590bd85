#include "lib/checkpoints/programs/dcp/zstd_item.hpp"

#include <zstd.h>
#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"

namespace fsdp {
namespace {

constexpr int kMaxWindowLog = 25;  // 32 MiB. PyTorch writes 2 MiB; a damaged frame may ask for gigabytes
constexpr std::size_t kInputBytes = 256u << 10;

constexpr std::size_t kHeadBytes = 64u << 10;  // holds everything before the storage
constexpr std::size_t kTailBytes = 64u << 10;  // at most this follows the storage
constexpr std::size_t kPieceBytes = 256u << 10;

std::string name_of(const ZstdItem& item) {
  return item.file.path().string() + ": in the zstd item at byte " + std::to_string(item.begin_bytes);
}

/// An archive of which only the bytes before and after the storage are kept in memory.
class ArchiveEnds : public RandomAccess {
 public:
  ArchiveEnds(std::string name, std::string head, std::string tail, std::uint64_t tail_begin_bytes)
      : name_(std::move(name)), head_(std::move(head)), tail_(std::move(tail)), tail_begin_bytes_(tail_begin_bytes) {}
  std::string name() const override { return name_; }
  std::uint64_t size_bytes() const override { return tail_begin_bytes_ + tail_.size(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    const bool in_head = offset_bytes < head_.size();
    const std::string& part = in_head ? head_ : tail_;
    const std::uint64_t begin = in_head ? 0 : tail_begin_bytes_;
    if (offset_bytes < begin || offset_bytes - begin > part.size() ||
        out.size() > part.size() - (offset_bytes - begin)) {
      throw FormatError(name_, offset_bytes,
                        "the archive keeps something here that should be before or after the data");
    }
    const auto from = std::as_bytes(std::span(part.data(), part.size())).subspan(offset_bytes - begin, out.size());
    std::copy(from.begin(), from.end(), out.begin());
  }

 private:
  std::string name_, head_, tail_;
  std::uint64_t tail_begin_bytes_;
};

std::span<std::byte> writable(std::string& text) { return std::as_writable_bytes(std::span(text.data(), text.size())); }

/// Reads an archive from front to back: derives the offset of the storage from what comes before it, and compares this
/// with the directory at the end.
class TensorArchive {
 public:
  explicit TensorArchive(const ZstdItem& item)
      : name_(name_of(item)), stream_(item.file, item.begin_bytes, item.length_bytes), head_(kHeadBytes, '\0') {
    head_.resize(stream_.read(writable(head_)));
    parse_pickle();
  }

  const TensorView& view() const { return view_; }

  /// Passes the storage on in order, as consume(bytes, offset in the storage); then checks the archive.
  template <typename Consume>
  void read_storage(Consume&& consume) {
    const std::uint64_t begin = storage_begin();
    std::uint32_t crc = 0;
    std::uint64_t done = 0;
    const auto take = [&](std::span<const std::byte> bytes) {
      crc = crc32(crc, bytes);
      consume(bytes, done);
      done += bytes.size();
    };
    const auto head = std::as_bytes(std::span(head_.data(), head_.size()));
    take(head.subspan(begin, std::min<std::uint64_t>(view_.storage_bytes, head.size() - begin)));
    std::vector<std::byte> piece(view_.storage_bytes > done ? kPieceBytes : 0);
    while (done < view_.storage_bytes) {
      const auto wanted = std::span(piece).first(std::min<std::uint64_t>(piece.size(), view_.storage_bytes - done));
      if (stream_.read(wanted) != wanted.size()) throw FormatError(name_, begin + done, "the archive ends in its data");
      take(wanted);
    }
    check_archive(begin, crc);
  }

 private:
  void parse_pickle() {
    using namespace detail;
    if (head_.size() < kZipLocalHeaderBytes || read_le<std::uint32_t>(head_, 0) != kZipLocalHeader) {
      throw FormatError(name_, 0, "no torch.save archive starts here (PK\\3\\4 expected)");
    }
    const std::size_t name_bytes = read_le<std::uint16_t>(head_, 26);
    const std::size_t begin = kZipLocalHeaderBytes + name_bytes + read_le<std::uint16_t>(head_, 28);
    const std::string entry = head_.substr(kZipLocalHeaderBytes, name_bytes);
    constexpr std::string_view suffix = "/data.pkl";
    if (begin >= head_.size() || !entry.ends_with(suffix)) {
      throw FormatError(name_, 0, "the archive does not start with its data.pkl");
    }
    prefix_ = entry.substr(0, entry.size() - suffix.size() + 1);
    const auto document =
        read_pickle({.text = std::make_shared<const std::string>(head_), .begin_bytes = begin, .file = name_});
    auto view = tensor_view(*document.root, name_);
    if (!view)
      throw FormatError(name_, begin, "a tensor was expected in this archive, found " + describe(*document.root));
    view_ = std::move(*view);
  }

  std::uint64_t storage_begin() const {
    using namespace detail;
    const std::string name = prefix_ + "data/" + view_.storage_key;
    for (std::size_t at = head_.find(name); at != std::string::npos; at = head_.find(name, at + 1)) {
      if (at < kZipLocalHeaderBytes) continue;
      const std::size_t header = at - kZipLocalHeaderBytes;
      if (read_le<std::uint32_t>(head_, header) != kZipLocalHeader ||
          read_le<std::uint16_t>(head_, header + 26) != name.size()) {
        continue;
      }
      const std::size_t begin = at + name.size() + read_le<std::uint16_t>(head_, header + 28);
      if (begin <= head_.size()) return begin;
    }
    throw FormatError(
        name_, 0,
        "entry \"" + name.substr(0, 100) + "\" does not follow within " + std::to_string(kHeadBytes) + " bytes");
  }

  void check_archive(std::uint64_t begin, std::uint32_t crc) {
    const std::uint64_t end = begin + view_.storage_bytes;
    std::string tail = end < head_.size() ? head_.substr(end) : std::string();
    const std::size_t known = tail.size();
    tail.resize(known + kTailBytes);
    tail.resize(known + stream_.read(writable(tail).subspan(known)));
    std::byte more{};
    if (stream_.read({&more, 1}) != 0) {
      throw FormatError(name_, end, "more than " + std::to_string(kTailBytes) + " bytes follow the tensor's data");
    }
    head_.resize(std::min<std::uint64_t>(head_.size(), end));
    const std::uint64_t length = end + tail.size();
    const TorchBlob blob(std::make_shared<ArchiveEnds>(name_, head_, std::move(tail), end), 0, length);
    const ZipEntry& entry = blob.storage(view_);
    if (blob.zip().data_offset(entry) != begin) {
      throw FormatError(name_, begin, "the archive's directory places the data elsewhere");
    }
    if (entry.crc32 != 0 && entry.crc32 != crc) {
      throw FormatError(name_, begin,
                        "the " + std::to_string(view_.storage_bytes) + " bytes of entry \"" + entry.name +
                            "\" do not have the recorded CRC-32; the file is damaged, use another copy "
                            "or checkpoint");
    }
  }

  std::string name_;
  ZstdStream stream_;
  std::string head_, prefix_;
  TensorView view_;
};

/// Copies the part of `bytes`, which lie at `place`, that falls into [begin, begin + out.size()).
void copy_common(std::span<const std::byte> bytes, std::uint64_t place, std::uint64_t begin, std::span<std::byte> out) {
  const std::uint64_t from = std::max(place, begin), to = std::min(place + bytes.size(), begin + out.size());
  if (from >= to) return;
  const auto common = bytes.subspan(from - place, to - from);
  std::copy(common.begin(), common.end(), iterator_at(out, from - begin));
}

}  // namespace

struct ZstdStream::Context {
  Context() : stream(ZSTD_createDStream()) {
    if (stream == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, kMaxWindowLog);
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
      input_.resize(kInputBytes);
      input_end_ = std::min<std::uint64_t>(kInputBytes, end_bytes_ - next_bytes_);
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

void read_zstd_tensor(const ZstdItem& item, const std::function<void(const TensorView&)>& check, std::uint64_t first,
                      std::uint64_t count, std::span<std::byte> out) {
  TensorArchive archive(item);
  const TensorView& view = archive.view();
  check(view);
  const std::uint64_t element_bytes = dtype_size_bytes(view.dtype);
  if (view.is_contiguous()) {
    const std::uint64_t begin = (view.storage_offset + first) * element_bytes;
    archive.read_storage(
        [&](std::span<const std::byte> bytes, std::uint64_t place) { copy_common(bytes, place, begin, out); });
  } else {
    std::vector<std::byte> storage(view.storage_bytes);
    archive.read_storage(
        [&](std::span<const std::byte> bytes, std::uint64_t place) { copy_common(bytes, place, 0, storage); });
    const bool whole = out.size() == view.length_bytes();
    std::vector<std::byte> all(whole ? 0 : view.length_bytes());
    copy_strided(view.sizes, view.strides, std::span(storage).subspan(view.storage_offset * element_bytes),
                 whole ? out : std::span(all), element_bytes);
    if (!whole) copy_common(all, 0, first * element_bytes, out);
  }
  if (out.size() != count * element_bytes) throw std::logic_error("read_zstd_tensor: wrong output size");
  resolve_lazy_bits(view, out);
}

std::string read_zstd_archive(const ZstdItem& item, std::uint64_t limit_bytes) {
  ZstdStream stream(item.file, item.begin_bytes, item.length_bytes);
  std::string archive;
  for (;;) {
    const std::size_t known = archive.size();
    archive.resize(known + kPieceBytes);
    const std::size_t more = stream.read(writable(archive).subspan(known));
    archive.resize(known + more);
    if (archive.size() > limit_bytes) {
      throw FormatError(name_of(item), limit_bytes, "the value decompresses to more bytes than any value should have");
    }
    if (more < kPieceBytes) return archive;
  }
}

}  // namespace fsdp
