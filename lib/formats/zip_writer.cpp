#include <algorithm>
#include <stdexcept>

#include "lib/formats/zip.hpp"
#include "lib/formats/zip_format.hpp"

namespace fsdp {
namespace {

using namespace detail;

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

/// `out` holds the central directory, which starts at `directory_at` of the archive; its end records follow it.
void append_end_records(std::string& out, std::uint64_t directory_at, std::uint64_t num_entries) {
  const std::uint64_t directory_bytes = out.size(), end64_at = directory_at + directory_bytes;
  append_le(out, zip_end64);
  append_le(out, std::uint64_t{zip_end64_bytes - 12});
  append_le(out, std::uint32_t{0x002d'001e});  // made by 3.0, needs 4.5
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

ZipWriter::ZipWriter(ByteSink& sink, std::string archive_name)
    : sink_(sink), begin_bytes_(sink.position()), archive_name_(std::move(archive_name)) {}

void ZipWriter::add(std::string_view name, std::span<const std::byte> data) {
  const std::string full_name = archive_name_ + "/" + std::string(name);
  if (full_name.size() > 0xffff) throw std::logic_error("zip entry name too long");
  const std::uint64_t header_at = position();
  const bool large = data.size() >= zip_in_zip64;

  // Sizes and CRC follow the data; a reader of the local header alone learns from the zip64 field how long they are.
  std::string extra;
  if (large) {
    append_le(extra, zip64_extra);
    append_le<std::uint16_t>(extra, 16);
    append_zeros(extra, 16);
  }
  const std::uint64_t unpadded = header_at + zip_local_header_bytes + full_name.size() + extra.size() + 4;
  const std::uint64_t padding = (alignment_bytes - unpadded % alignment_bytes) % alignment_bytes;
  append_le(extra, torch_padding_extra);
  append_le(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  append_le(header, zip_local_header);
  append_common(header);
  append_zeros(header, 4);  // CRC
  append_le(header, large ? zip_in_zip64 : 0u);
  append_le(header, large ? zip_in_zip64 : 0u);
  append_le(header, static_cast<std::uint16_t>(full_name.size()));
  append_le(header, static_cast<std::uint16_t>(extra.size()));
  sink_.write(header + full_name + extra);
  const std::uint32_t crc = sink_.write(data);

  std::string descriptor;
  append_le(descriptor, zip_descriptor);
  append_le(descriptor, crc);
  for (int i = 0; i < 2; ++i) {
    if (large) {
      append_le(descriptor, std::uint64_t{data.size()});
    } else {
      append_le(descriptor, static_cast<std::uint32_t>(data.size()));
    }
  }
  sink_.write(descriptor);
  written_.push_back({full_name, data.size(), header_at, crc});
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  add(name, std::as_bytes(std::span(text.data(), text.size())));
}

std::uint64_t ZipWriter::finish() {
  const std::uint64_t directory_at = position();
  std::string out;
  for (const auto& entry : written_) {
    std::string extra;
    if (entry.size_bytes >= zip_in_zip64 || entry.header_bytes >= zip_in_zip64) {
      append_le(extra, zip64_extra);
      append_le<std::uint16_t>(extra, 24);
      append_le(extra, entry.size_bytes);
      append_le(extra, entry.size_bytes);
      append_le(extra, entry.header_bytes);
    }
    const bool in_extra = !extra.empty();
    append_le(out, zip_central_header);
    append_le<std::uint16_t>(out, 0);  // made by
    append_common(out);
    append_le(out, entry.crc32);
    append_le(out, in_extra ? zip_in_zip64 : field_32(entry.size_bytes));
    append_le(out, in_extra ? zip_in_zip64 : field_32(entry.size_bytes));
    append_le(out, static_cast<std::uint16_t>(entry.name.size()));
    append_le(out, static_cast<std::uint16_t>(extra.size()));
    append_zeros(out, 10);  // comment, disk, attributes
    append_le(out, in_extra ? zip_in_zip64 : field_32(entry.header_bytes));
    out += entry.name + extra;
  }
  append_end_records(out, directory_at, written_.size());
  sink_.write(out);
  return position();
}

}  // namespace fsdp
