// Source: PKWARE APPNOTE 6.3 and torch 2.11 caffe2/serialize/inline_container.cc.
#include "lib/files/formats/zip_records.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/files/formats/crc32.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace detail {
namespace {

constexpr std::uint64_t alignment_bytes = 64;

std::uint32_t field_32(std::uint64_t value) {
  return value >= zip_in_zip64 ? zip_in_zip64 : static_cast<std::uint32_t>(value);
}

void append_zeros(std::string& out, std::size_t count) { out.append(count, '\0'); }

/// Version, flags, method, time and date: the same in both kinds of header.
void append_common(std::string& out) {
  append_le<std::uint16_t>(out, 0);  // version needed: torch writes 0
  append_le<std::uint16_t>(out, zip_flags);
  append_zeros(out, 6);  // stored, no time
}

/// The zip64 field of both headers: what does not fit their own fields. Empty when everything does. torch gives no
/// compressed size in local headers.
std::string zip64_field(std::uint64_t size_bytes, std::uint64_t compressed_bytes, std::uint64_t header_at) {
  std::string values;
  if (size_bytes >= zip_in_zip64) {
    append_le(values, size_bytes);
    append_le(values, compressed_bytes);
  }
  if (header_at >= zip_in_zip64) append_le(values, header_at);
  std::string field;
  if (values.empty()) return field;
  append_le(field, zip64_extra);
  append_le(field, static_cast<std::uint16_t>(values.size()));
  return field + values;
}

/// `out` holds the central directory, which starts at `directory_at` of the archive; its end records follow it.
void append_end_records(std::string& out, std::uint64_t directory_at, std::uint64_t num_entries) {
  const std::uint64_t directory_bytes = out.size(), end64_at = directory_at + directory_bytes;
  append_le(out, zip_end64);
  append_le(out, std::uint64_t{zip_end64_bytes - 12});
  append_le(out, std::uint32_t{0x002d'031e});  // made by 3.0 on Unix, needs 4.5
  append_zeros(out, 8);                        // disks
  for (int i = 0; i < 2; ++i) append_le(out, num_entries);
  append_le(out, directory_bytes);
  append_le(out, directory_at);

  append_le(out, zip_end64_locator);
  append_zeros(out, 4);
  append_le(out, end64_at);
  append_le(out, std::uint32_t{1});

  append_le(out, zip_end);
  append_zeros(out, 4);
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(num_entries, 0xffff));
  for (int i = 0; i < 2; ++i) append_le(out, count);
  append_le(out, field_32(directory_bytes));
  append_le(out, field_32(directory_at));
  append_zeros(out, 2);  // comment
}

}  // namespace

std::string zip_local_header_of(std::string_view name, std::uint64_t size_bytes, std::uint64_t header_at) {
  if (name.size() > 0xffff) throw std::logic_error("zip entry name too long");
  std::string extra = zip64_field(size_bytes, 0, header_at);
  const std::uint64_t unpadded = header_at + zip_local_header_bytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (alignment_bytes - unpadded % alignment_bytes) % alignment_bytes;
  append_le(extra, torch_padding_extra);
  append_le(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  append_le(header, zip_local_header);
  append_common(header);
  append_zeros(header, 12);  // CRC and sizes follow the data
  append_le(header, static_cast<std::uint16_t>(name.size()));
  append_le(header, static_cast<std::uint16_t>(extra.size()));
  return header.append(name).append(extra);
}

std::string zip_descriptor_of(const ZipRecord& record) {
  const bool is_zip64 = !zip64_field(record.size_bytes, record.size_bytes, record.header_bytes).empty();
  std::string descriptor;
  append_le(descriptor, zip_descriptor);
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
    append_le(out, zip_central_header);
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

}  // namespace fsdp
