#include "lib/files/read/zstd_item.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/files/formats/block.hpp"
#include "lib/files/formats/crc32.hpp"
#include "lib/files/formats/pickle_reader.hpp"
#include "lib/files/formats/zip_format.hpp"
#include "lib/files/read/tensor_in_file.hpp"
#include "lib/files/read/zstd_stream.hpp"

namespace fsdp {
namespace {

constexpr std::size_t head_bytes = 64u << 10;  // holds everything before the storage
constexpr std::size_t tail_bytes = 64u << 10;  // at most this follows the storage
constexpr std::size_t piece_bytes = 256u << 10;

std::string name_of(const ZstdItem& item) {
  return item.file.path().string() + ": in the zstd item at byte " + std::to_string(item.begin_bytes);
}

/// An archive of which only the bytes before and after the storage are kept.
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

/// Reads an archive front to back: what its directory will say at the end is guessed first and compared then.
class TensorArchive {
 public:
  explicit TensorArchive(const ZstdItem& item)
      : name_(name_of(item)), stream_(item.file, item.begin_bytes, item.length_bytes), head_(head_bytes, '\0') {
    head_.resize(stream_.read(writable(head_)));
    parse_pickle();
  }

  const TensorView& view() const { return view_; }

  /// Passes the storage on in order: consume(bytes, their place in the storage). Then checks the archive.
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
    std::vector<std::byte> piece(view_.storage_bytes > done ? piece_bytes : 0);
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
    if (head_.size() < zip_local_header_bytes || read_le<std::uint32_t>(head_, 0) != zip_local_header) {
      throw FormatError(name_, 0, "no torch.save archive starts here (PK\\3\\4 expected)");
    }
    const std::size_t name_bytes = read_le<std::uint16_t>(head_, 26);
    const std::size_t begin = zip_local_header_bytes + name_bytes + read_le<std::uint16_t>(head_, 28);
    const std::string entry = head_.substr(zip_local_header_bytes, name_bytes);
    constexpr std::string_view suffix = "/data.pkl";
    if (begin >= head_.size() || !entry.ends_with(suffix)) {
      throw FormatError(name_, 0, "the archive does not start with its data.pkl");
    }
    prefix_ = entry.substr(0, entry.size() - suffix.size() + 1);
    const auto document = read_pickle({std::make_shared<const std::string>(head_), begin, name_, 0});
    auto view = tensor_view(*document.root, name_);
    if (!view)
      throw FormatError(name_, begin, "a tensor was expected in this archive, found " + describe(*document.root));
    view_ = std::move(*view);
  }

  std::uint64_t storage_begin() const {
    using namespace detail;
    const std::string name = prefix_ + "data/" + view_.storage_key;
    for (std::size_t at = head_.find(name); at != std::string::npos; at = head_.find(name, at + 1)) {
      if (at < zip_local_header_bytes) continue;
      const std::size_t header = at - zip_local_header_bytes;
      if (read_le<std::uint32_t>(head_, header) != zip_local_header ||
          read_le<std::uint16_t>(head_, header + 26) != name.size()) {
        continue;
      }
      const std::size_t begin = at + name.size() + read_le<std::uint16_t>(head_, header + 28);
      if (begin <= head_.size()) return begin;
    }
    throw FormatError(
        name_, 0,
        "entry \"" + name.substr(0, 100) + "\" does not follow within " + std::to_string(head_bytes) + " bytes");
  }

  void check_archive(std::uint64_t begin, std::uint32_t crc) {
    const std::uint64_t end = begin + view_.storage_bytes;
    std::string tail = end < head_.size() ? head_.substr(end) : std::string();
    const std::size_t known = tail.size();
    tail.resize(known + tail_bytes);
    tail.resize(known + stream_.read(writable(tail).subspan(known)));
    std::byte more{};
    if (stream_.read({&more, 1}) != 0) {
      throw FormatError(name_, end, "more than " + std::to_string(tail_bytes) + " bytes follow the tensor's data");
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

/// The part of `bytes`, which lie at `place`, that falls into [begin, begin + out.size()).
void copy_common(std::span<const std::byte> bytes, std::uint64_t place, std::uint64_t begin, std::span<std::byte> out) {
  const std::uint64_t from = std::max(place, begin), to = std::min(place + bytes.size(), begin + out.size());
  if (from >= to) return;
  const auto common = bytes.subspan(from - place, to - from);
  std::copy(common.begin(), common.end(), out.begin() + static_cast<std::ptrdiff_t>(from - begin));
}

}  // namespace

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
    archive.resize(known + piece_bytes);
    const std::size_t more = stream.read(writable(archive).subspan(known));
    archive.resize(known + more);
    if (archive.size() > limit_bytes) {
      throw FormatError(name_of(item), limit_bytes, "the value decompresses to more bytes than any value should have");
    }
    if (more < piece_bytes) return archive;
  }
}

}  // namespace fsdp
