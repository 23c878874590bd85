#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/files/formats/crc32.hpp"
#include "lib/files/formats/zip.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace {

using namespace detail;

std::string read_string(const RandomAccess& file, std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  std::string text(length_bytes, '\0');
  file.read_at(offset_bytes, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

/// The 64-bit values of a zip64 extra field, in its fixed order; only fields marked in the header are there.
class Zip64Field {
 public:
  explicit Zip64Field(std::string_view extra) {
    while (extra.size() >= 4) {
      const auto id = read_le<std::uint16_t>(extra, 0);
      const std::size_t length = read_le<std::uint16_t>(extra, 2);
      if (length > extra.size() - 4) return;
      if (id == zip64_extra) {
        values_ = extra.substr(4, length);
        return;
      }
      extra.remove_prefix(4 + length);
    }
  }

  /// Replaces a marked 32-bit field. False when the extra field lacks it.
  bool resolve(std::uint64_t& field) {
    if (field != zip_in_zip64) return true;
    if (values_.size() < 8) return false;
    field = read_le<std::uint64_t>(values_, 0);
    values_.remove_prefix(8);
    return true;
  }

 private:
  std::string_view values_;
};

}  // namespace

void ZipReader::fail(std::uint64_t offset_bytes, const std::string& what) const {
  throw FormatError(input_->name(), offset_bytes, what);
}

ZipReader::ZipReader(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : ZipReader(std::make_shared<FileAccess>(file), begin_bytes, length_bytes) {}

ZipReader::ZipReader(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : input_(std::move(input)), begin_bytes_(begin_bytes) {
  const std::uint64_t file_bytes = input_->size_bytes();
  if (begin_bytes > file_bytes || length_bytes > file_bytes - begin_bytes) {
    fail(begin_bytes, "an archive of " + std::to_string(length_bytes) + " bytes should lie here, but the file has " +
                          std::to_string(file_bytes) + " bytes; it was cut short, or belongs to another checkpoint");
  }
  if (length_bytes < zip_end_bytes ||
      read_le<std::uint32_t>(read_string(*input_, begin_bytes, 4), 0) != zip_local_header) {
    fail(begin_bytes, "no torch.save archive starts here (PK\\3\\4 expected)");
  }
  const Directory directory = locate_directory(length_bytes);
  parse_directory(directory);
  check_extents(directory.offset_bytes);
}

ZipReader::Directory ZipReader::locate_directory(std::uint64_t length_bytes) const {
  const std::uint64_t tail_bytes =
      std::min<std::uint64_t>(length_bytes, zip_end_bytes + zip_end64_locator_bytes + zip_end64_bytes);
  const std::uint64_t tail_at = begin_bytes_ + length_bytes - tail_bytes;
  const std::string tail = read_string(*input_, tail_at, tail_bytes);
  const std::size_t end_at = tail.size() - zip_end_bytes;
  if (read_le<std::uint32_t>(tail, end_at) != zip_end || read_le<std::uint16_t>(tail, end_at + 20) != 0) {
    fail(tail_at + end_at, "the archive does not end here as it should (PK\\5\\6 without a comment expected)");
  }
  Directory found{read_le<std::uint32_t>(tail, end_at + 16), read_le<std::uint32_t>(tail, end_at + 12),
                  read_le<std::uint16_t>(tail, end_at + 10)};
  std::uint64_t directory_end = length_bytes - zip_end_bytes;
  const bool has_end64 = end_at >= zip_end64_locator_bytes + zip_end64_bytes &&
                         read_le<std::uint32_t>(tail, end_at - zip_end64_locator_bytes) == zip_end64_locator;
  if (has_end64) {
    const std::size_t end64_at = end_at - zip_end64_locator_bytes - zip_end64_bytes;
    directory_end -= zip_end64_locator_bytes + zip_end64_bytes;
    if (read_le<std::uint32_t>(tail, end64_at) != zip_end64 ||
        read_le<std::uint64_t>(tail, end_at - zip_end64_locator_bytes + 8) != directory_end) {
      fail(tail_at + end64_at, "the zip64 end record is not where its locator says");
    }
    found = {read_le<std::uint64_t>(tail, end64_at + 48), read_le<std::uint64_t>(tail, end64_at + 40),
             read_le<std::uint64_t>(tail, end64_at + 32)};
  }
  if (found.offset_bytes > directory_end || found.length_bytes != directory_end - found.offset_bytes) {
    fail(tail_at, "the central directory does not lie right before its end record");
  }
  if (found.num_entries > found.length_bytes / zip_central_header_bytes) {
    fail(tail_at, std::to_string(found.num_entries) + " entries do not fit the central directory");
  }
  found.offset_bytes += begin_bytes_;
  return found;
}

void ZipReader::parse_directory(const Directory& directory) {
  const std::string text = read_string(*input_, directory.offset_bytes, directory.length_bytes);
  std::size_t at = 0;
  entries_.reserve(directory.num_entries);
  for (std::uint64_t i = 0; i < directory.num_entries; ++i) {
    const std::uint64_t here = directory.offset_bytes + at;
    if (text.size() - at < zip_central_header_bytes || read_le<std::uint32_t>(text, at) != zip_central_header) {
      fail(here, "a central directory header (PK\\1\\2) was expected");
    }
    const std::size_t name_bytes = read_le<std::uint16_t>(text, at + 28);
    const std::size_t extra_bytes = read_le<std::uint16_t>(text, at + 30);
    const std::size_t comment_bytes = read_le<std::uint16_t>(text, at + 32);
    const std::size_t tail_bytes = name_bytes + extra_bytes + comment_bytes;
    if (tail_bytes > text.size() - at - zip_central_header_bytes) fail(here, "a name or extra field is cut off");
    if ((read_le<std::uint16_t>(text, at + 8) & zip_flag_encrypted) != 0 ||
        read_le<std::uint16_t>(text, at + 10) != 0) {
      fail(here, "an entry is compressed or encrypted; torch.save stores entries as they are");
    }
    ZipEntry entry;
    entry.name = text.substr(at + zip_central_header_bytes, name_bytes);
    entry.crc32 = read_le<std::uint32_t>(text, at + 16);
    std::uint64_t stored_bytes = read_le<std::uint32_t>(text, at + 20);
    entry.size_bytes = read_le<std::uint32_t>(text, at + 24);
    entry.header_bytes = read_le<std::uint32_t>(text, at + 42);
    Zip64Field zip64(std::string_view(text).substr(at + zip_central_header_bytes + name_bytes, extra_bytes));
    if (!zip64.resolve(entry.size_bytes) || !zip64.resolve(stored_bytes) || !zip64.resolve(entry.header_bytes)) {
      fail(here, "entry \"" + entry.name + "\" lacks its zip64 sizes");
    }
    if (stored_bytes != entry.size_bytes) fail(here, "entry \"" + entry.name + "\" has two different sizes");
    if (entry.header_bytes > directory.offset_bytes - begin_bytes_)
      fail(here, "entry \"" + entry.name + "\" lies outside");
    entry.header_bytes += begin_bytes_;
    entries_.push_back(std::move(entry));
    at += zip_central_header_bytes + tail_bytes;
  }
  if (at != text.size()) fail(directory.offset_bytes + at, "the central directory has more than its end record counts");
}

void ZipReader::check_extents(std::uint64_t directory_bytes) {
  std::sort(entries_.begin(), entries_.end(),
            [](const ZipEntry& a, const ZipEntry& b) { return a.header_bytes < b.header_bytes; });
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    auto& entry = entries_[i];
    entry.data_end_limit = i + 1 < entries_.size() ? entries_[i + 1].header_bytes : directory_bytes;
    const std::uint64_t room = entry.data_end_limit - entry.header_bytes;
    const std::uint64_t header = zip_local_header_bytes + entry.name.size();
    if (room < header || entry.size_bytes > room - header) {
      fail(entry.header_bytes,
           "entry \"" + entry.name + "\" of " + std::to_string(entry.size_bytes) + " bytes overlaps what follows it");
    }
    if (!by_name_.emplace(entry.name, i).second) fail(entry.header_bytes, "entry \"" + entry.name + "\" occurs twice");
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() ? &entries_[found->second] : nullptr;
}

const ZipEntry& ZipReader::find_suffix(std::string_view suffix) const {
  const ZipEntry* found = nullptr;
  for (const auto& entry : entries_) {
    if (!std::string_view(entry.name).ends_with(suffix)) continue;
    if (found != nullptr) fail(entry.header_bytes, "a second entry ends in \"" + std::string(suffix) + "\"");
    found = &entry;
  }
  if (found == nullptr) fail(begin_bytes_, "the archive has no entry \"" + std::string(suffix) + "\"");
  return *found;
}

std::uint64_t ZipReader::data_offset(const ZipEntry& entry) const {
  // The limit is at least a header and the name away: check_extents saw to it.
  const std::string header = read_string(*input_, entry.header_bytes, zip_local_header_bytes + entry.name.size());
  if (read_le<std::uint32_t>(header, 0) != zip_local_header || read_le<std::uint16_t>(header, 8) != 0 ||
      read_le<std::uint16_t>(header, 26) != entry.name.size() || header.substr(zip_local_header_bytes) != entry.name) {
    fail(entry.header_bytes, "the local header of entry \"" + entry.name + "\" contradicts the central directory");
  }
  const std::uint64_t offset = entry.header_bytes + header.size() + read_le<std::uint16_t>(header, 28);
  if (offset > entry.data_end_limit || entry.size_bytes > entry.data_end_limit - offset) {
    fail(entry.header_bytes, "entry \"" + entry.name + "\" overlaps what follows it");
  }
  return offset;
}

void ZipReader::read(const ZipEntry& entry, std::span<std::byte> out) const {
  constexpr std::size_t piece_bytes = 512u << 10;  // summed while it is in cache
  const std::uint64_t offset = data_offset(entry);
  if (out.size() != entry.size_bytes) throw std::logic_error("ZipReader::read: wrong output size");
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < out.size(); done += piece_bytes) {
    const auto piece = out.subspan(done, std::min(piece_bytes, out.size() - done));
    input_->read_at(offset + done, piece);
    crc = fsdp::crc32(crc, piece);
  }
  if (entry.crc32 != 0 && crc != entry.crc32) {
    fail(offset, "the " + std::to_string(entry.size_bytes) + " bytes of entry \"" + entry.name +
                     "\" do not have the recorded CRC-32; the file is damaged, use another copy or checkpoint");
  }
}

std::string ZipReader::read_text(const ZipEntry& entry, std::uint64_t limit_bytes) const {
  if (entry.size_bytes > limit_bytes) {
    fail(entry.header_bytes, "entry \"" + entry.name + "\" is " + std::to_string(entry.size_bytes) +
                                 " bytes, at most " + std::to_string(limit_bytes) + " were expected");
  }
  std::string text(entry.size_bytes, '\0');
  read(entry, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

}  // namespace fsdp
