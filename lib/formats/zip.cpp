// Source: PKWARE APPNOTE 6.3 and torch 2.11 caffe2/serialize/inline_container.cc.
#include "lib/formats/zip.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

using detail::append_le;
using detail::kZipLocalHeader;
using detail::kZipLocalHeaderBytes;
using detail::read_le;

constexpr std::uint32_t kZipDescriptor = 0x08074b50, kZipCentralHeader = 0x02014b50, kZipEnd64 = 0x06064b50,
                        kZipEnd64Locator = 0x07064b50, kZipEnd = 0x06054b50;
constexpr std::size_t kZipCentralHeaderBytes = 46, kZipEnd64Bytes = 56, kZipEnd64LocatorBytes = 20, kZipEndBytes = 22;
constexpr std::uint32_t kZipInZip64 = 0xffffffffu;  ///< marks a 32-bit field whose value is in the zip64 extra field
constexpr std::uint16_t kZip64Extra = 0x0001, kTorchPaddingExtra = 0x4246;  // "FB"
constexpr std::uint16_t kZipFlags = 0x0808;  ///< a data descriptor follows the data, and names are UTF-8
constexpr std::uint16_t kZipFlagEncrypted = 0x0001;

constexpr std::uint64_t kZipAlignmentBytes = 64;

std::uint32_t field_32(std::uint64_t value) {
  return value >= kZipInZip64 ? kZipInZip64 : static_cast<std::uint32_t>(value);
}

void append_zeros(std::string& out, std::size_t count) { out.append(count, '\0'); }

/// Appends version, flags, method, time and date, which both kinds of header share.
void append_common(std::string& out) {
  append_le<std::uint16_t>(out, 0);  // version needed: torch writes 0
  append_le<std::uint16_t>(out, kZipFlags);
  append_zeros(out, 6);  // stored, no time
}

/// The zip64 extra field of a header: the values that do not fit the fields of the header; empty when all fit. PyTorch
/// leaves the compressed size out of local headers.
std::string zip64_field(std::uint64_t size_bytes, std::uint64_t compressed_bytes, std::uint64_t header_at) {
  std::string values;
  if (size_bytes >= kZipInZip64) {
    append_le(values, size_bytes);
    append_le(values, compressed_bytes);
  }
  if (header_at >= kZipInZip64) append_le(values, header_at);
  std::string field;
  if (values.empty()) return field;
  append_le(field, kZip64Extra);
  append_le(field, static_cast<std::uint16_t>(values.size()));
  return field + values;
}

/// Appends the end records to `out`, which holds the central directory; the directory starts at `directory_at` of the
/// archive.
void append_end_records(std::string& out, std::uint64_t directory_at, std::uint64_t num_entries) {
  const std::uint64_t directory_bytes = out.size(), end64_at = directory_at + directory_bytes;
  append_le(out, kZipEnd64);
  append_le(out, std::uint64_t{kZipEnd64Bytes - 12});
  append_le(out, std::uint32_t{0x002d'031e});  // made by 3.0 on Unix, needs 4.5
  append_zeros(out, 8);                        // disks
  for (int i = 0; i < 2; ++i) append_le(out, num_entries);
  append_le(out, directory_bytes);
  append_le(out, directory_at);

  append_le(out, kZipEnd64Locator);
  append_zeros(out, 4);
  append_le(out, end64_at);
  append_le(out, std::uint32_t{1});

  append_le(out, kZipEnd);
  append_zeros(out, 4);
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(num_entries, 0xffff));
  for (int i = 0; i < 2; ++i) append_le(out, count);
  append_le(out, field_32(directory_bytes));
  append_le(out, field_32(directory_at));
  append_zeros(out, 2);  // comment
}

std::string read_string(const RandomAccess& file, std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  std::string text(length_bytes, '\0');
  file.read_at(offset_bytes, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

/// The 64-bit values of a zip64 extra field, in the order that the format fixes. The field has only values that the
/// header marks.
class Zip64Field {
 public:
  explicit Zip64Field(std::string_view extra) {
    while (extra.size() >= 4) {
      const auto id = read_le<std::uint16_t>(extra, 0);
      const std::size_t length = read_le<std::uint16_t>(extra, 2);
      if (length > extra.size() - 4) return;
      if (id == kZip64Extra) {
        values_ = extra.substr(4, length);
        return;
      }
      extra.remove_prefix(4 + length);
    }
  }

  /// Replaces a marked 32-bit field by its 64-bit value. Returns false when the extra field lacks the value.
  bool resolve(std::uint64_t& field) {
    if (field != kZipInZip64) return true;
    if (values_.size() < 8) return false;
    field = read_le<std::uint64_t>(values_, 0);
    values_.remove_prefix(8);
    return true;
  }

 private:
  std::string_view values_;
};

}  // namespace

namespace detail {

std::string zip_local_header_of(std::string_view name, std::uint64_t size_bytes, std::uint64_t header_at) {
  if (name.size() > 0xffff) throw std::logic_error("zip entry name too long");
  std::string extra = zip64_field(size_bytes, 0, header_at);
  const std::uint64_t unpadded = header_at + kZipLocalHeaderBytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (kZipAlignmentBytes - unpadded % kZipAlignmentBytes) % kZipAlignmentBytes;
  append_le(extra, kTorchPaddingExtra);
  append_le(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  append_le(header, kZipLocalHeader);
  append_common(header);
  append_zeros(header, 12);  // CRC and sizes follow the data
  append_le(header, static_cast<std::uint16_t>(name.size()));
  append_le(header, static_cast<std::uint16_t>(extra.size()));
  return header.append(name).append(extra);
}

std::string zip_descriptor_of(const ZipRecord& record) {
  const bool is_zip64 = !zip64_field(record.size_bytes, record.size_bytes, record.header_bytes).empty();
  std::string descriptor;
  append_le(descriptor, kZipDescriptor);
  append_le(descriptor, record.crc32);
  for (int i = 0; i < 2; ++i) {
    if (is_zip64) {
      append_le(descriptor, record.size_bytes);
    } else {
      append_le(descriptor, static_cast<std::uint32_t>(record.size_bytes));
    }
  }
  return descriptor;
}

std::string zip_directory_of(std::span<const ZipRecord> records, std::uint64_t directory_at) {
  std::string out;
  for (const auto& record : records) {
    const auto extra = zip64_field(record.size_bytes, record.size_bytes, record.header_bytes);
    append_le(out, kZipCentralHeader);
    append_le<std::uint16_t>(out, 0);  // made by
    append_common(out);
    append_le(out, record.crc32);
    append_le(out, field_32(record.size_bytes));
    append_le(out, field_32(record.size_bytes));
    append_le(out, static_cast<std::uint16_t>(record.name.size()));
    append_le(out, static_cast<std::uint16_t>(extra.size()));
    append_zeros(out, 10);  // comment, disk, attributes
    append_le(out, field_32(record.header_bytes));
    out += record.name + extra;
  }
  append_end_records(out, directory_at, records.size());
  return out;
}

}  // namespace detail

std::uint64_t ZipPlan::append(Entry entry, std::string_view name, std::uint64_t entry_bytes) {
  entry.record.name = archive_name_ + "/" + std::string(name);
  entry.record.size_bytes = entry_bytes;
  entry.record.header_bytes = size_bytes_;
  const auto data_at = size_bytes_ + detail::zip_local_header_of(entry.record.name, entry_bytes, size_bytes_).size();
  size_bytes_ = data_at + entry_bytes + detail::zip_descriptor_of(entry.record).size();
  entries_.push_back(std::move(entry));
  return data_at;
}

void ZipPlan::add(std::string_view name, std::string text) {
  Entry entry;
  entry.record.crc32 = fsdp::crc32(0, std::as_bytes(std::span(text.data(), text.size())));
  const auto entry_bytes = text.size();
  entry.text = std::move(text);
  append(std::move(entry), name, entry_bytes);
}

std::uint64_t ZipPlan::add_data(std::string_view name, std::uint64_t entry_bytes) {
  Entry entry;
  entry.later = true;
  return append(std::move(entry), name, entry_bytes);
}

void ZipPlan::finish() {
  directory_at_ = size_bytes_;
  std::vector<ZipRecord> records;
  for (const auto& entry : entries_) records.push_back(entry.record);
  size_bytes_ += detail::zip_directory_of(records, directory_at_).size();
}

std::string ZipPlan::head() const {
  std::string out;
  std::vector<ZipRecord> records;
  for (const auto& entry : entries_) {
    out += detail::zip_local_header_of(entry.record.name, entry.record.size_bytes, entry.record.header_bytes);
    if (entry.later) return out;
    out += entry.text + detail::zip_descriptor_of(entry.record);
    records.push_back(entry.record);
  }
  return out + detail::zip_directory_of(records, directory_at_);
}

std::vector<ZipPlan::Piece> ZipPlan::tail(std::span<const std::uint32_t> crcs) const {
  std::vector<Piece> pieces;
  std::vector<ZipRecord> records;
  std::size_t data = 0;
  for (const auto& entry : entries_) {
    auto record = entry.record;
    if (!pieces.empty()) {
      pieces.back().bytes += detail::zip_local_header_of(record.name, record.size_bytes, record.header_bytes);
    }
    if (entry.later) {
      record.crc32 = crcs[data++];
      const auto header_size = detail::zip_local_header_of(record.name, record.size_bytes, record.header_bytes).size();
      pieces.push_back({record.header_bytes + header_size + record.size_bytes, {}});
    }
    if (!pieces.empty()) {
      pieces.back().bytes += entry.text + detail::zip_descriptor_of(record);
    }
    records.push_back(std::move(record));
  }
  if (data != crcs.size()) throw std::logic_error("ZipPlan::tail: one checksum for each entry that came later");
  if (!pieces.empty()) pieces.back().bytes += detail::zip_directory_of(records, directory_at_);
  return pieces;
}

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
  if (length_bytes < kZipEndBytes ||
      read_le<std::uint32_t>(read_string(*input_, begin_bytes, 4), 0) != kZipLocalHeader) {
    fail(begin_bytes, "no torch.save archive starts here (PK\\3\\4 expected)");
  }
  const Directory directory = locate_directory(length_bytes);
  parse_directory(directory);
  check_extents(directory.offset_bytes);
}

ZipReader::Directory ZipReader::locate_directory(std::uint64_t length_bytes) const {
  const std::uint64_t tail_bytes =
      std::min<std::uint64_t>(length_bytes, kZipEndBytes + kZipEnd64LocatorBytes + kZipEnd64Bytes);
  const std::uint64_t tail_at = begin_bytes_ + length_bytes - tail_bytes;
  const std::string tail = read_string(*input_, tail_at, tail_bytes);
  const std::size_t end_at = tail.size() - kZipEndBytes;
  if (read_le<std::uint32_t>(tail, end_at) != kZipEnd || read_le<std::uint16_t>(tail, end_at + 20) != 0) {
    fail(tail_at + end_at, "the archive does not end here as it should (PK\\5\\6 without a comment expected)");
  }
  Directory found{read_le<std::uint32_t>(tail, end_at + 16), read_le<std::uint32_t>(tail, end_at + 12),
                  read_le<std::uint16_t>(tail, end_at + 10)};
  std::uint64_t directory_end = length_bytes - kZipEndBytes;
  const bool has_end64 = end_at >= kZipEnd64LocatorBytes + kZipEnd64Bytes &&
                         read_le<std::uint32_t>(tail, end_at - kZipEnd64LocatorBytes) == kZipEnd64Locator;
  if (has_end64) {
    const std::size_t end64_at = end_at - kZipEnd64LocatorBytes - kZipEnd64Bytes;
    directory_end -= kZipEnd64LocatorBytes + kZipEnd64Bytes;
    if (read_le<std::uint32_t>(tail, end64_at) != kZipEnd64 ||
        read_le<std::uint64_t>(tail, end_at - kZipEnd64LocatorBytes + 8) != directory_end) {
      fail(tail_at + end64_at, "the zip64 end record is not where its locator says");
    }
    found = {read_le<std::uint64_t>(tail, end64_at + 48), read_le<std::uint64_t>(tail, end64_at + 40),
             read_le<std::uint64_t>(tail, end64_at + 32)};
  }
  if (found.offset_bytes > directory_end || found.length_bytes != directory_end - found.offset_bytes) {
    fail(tail_at, "the central directory does not lie right before its end record");
  }
  if (found.num_entries > found.length_bytes / kZipCentralHeaderBytes) {
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
    if (text.size() - at < kZipCentralHeaderBytes || read_le<std::uint32_t>(text, at) != kZipCentralHeader) {
      fail(here, "a central directory header (PK\\1\\2) was expected");
    }
    const std::size_t name_bytes = read_le<std::uint16_t>(text, at + 28);
    const std::size_t extra_bytes = read_le<std::uint16_t>(text, at + 30);
    const std::size_t comment_bytes = read_le<std::uint16_t>(text, at + 32);
    const std::size_t tail_bytes = name_bytes + extra_bytes + comment_bytes;
    if (tail_bytes > text.size() - at - kZipCentralHeaderBytes) fail(here, "a name or extra field is cut off");
    if ((read_le<std::uint16_t>(text, at + 8) & kZipFlagEncrypted) != 0 || read_le<std::uint16_t>(text, at + 10) != 0) {
      fail(here, "an entry is compressed or encrypted; torch.save stores entries as they are");
    }
    ZipEntry entry;
    entry.name = text.substr(at + kZipCentralHeaderBytes, name_bytes);
    entry.crc32 = read_le<std::uint32_t>(text, at + 16);
    std::uint64_t stored_bytes = read_le<std::uint32_t>(text, at + 20);
    entry.size_bytes = read_le<std::uint32_t>(text, at + 24);
    entry.header_bytes = read_le<std::uint32_t>(text, at + 42);
    Zip64Field zip64(std::string_view(text).substr(at + kZipCentralHeaderBytes + name_bytes, extra_bytes));
    if (!zip64.resolve(entry.size_bytes) || !zip64.resolve(stored_bytes) || !zip64.resolve(entry.header_bytes)) {
      fail(here, "entry \"" + entry.name + "\" lacks its zip64 sizes");
    }
    if (stored_bytes != entry.size_bytes) fail(here, "entry \"" + entry.name + "\" has two different sizes");
    if (entry.header_bytes > directory.offset_bytes - begin_bytes_)
      fail(here, "entry \"" + entry.name + "\" lies outside");
    entry.header_bytes += begin_bytes_;
    entries_.push_back(std::move(entry));
    at += kZipCentralHeaderBytes + tail_bytes;
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
    const std::uint64_t header = kZipLocalHeaderBytes + entry.name.size();
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
  // check_extents() made sure that a header and the name fit before the limit.
  const std::string header = read_string(*input_, entry.header_bytes, kZipLocalHeaderBytes + entry.name.size());
  if (read_le<std::uint32_t>(header, 0) != kZipLocalHeader || read_le<std::uint16_t>(header, 8) != 0 ||
      read_le<std::uint16_t>(header, 26) != entry.name.size() || header.substr(kZipLocalHeaderBytes) != entry.name) {
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
