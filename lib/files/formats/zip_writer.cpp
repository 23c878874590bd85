#include "lib/files/formats/zip.hpp"

namespace fsdp {

ZipWriter::ZipWriter(ByteSink& sink, std::string archive_name)
    : sink_(sink), begin_bytes_(sink.position()), archive_name_(std::move(archive_name)) {}

void ZipWriter::add(std::string_view name, std::span<const std::byte> data) {
  ZipRecord record{archive_name_ + "/" + std::string(name), data.size(), position(), 0};
  sink_.write(detail::zip_local_header_of(record.name, record.size_bytes, record.header_bytes));
  record.crc32 = sink_.write(data);
  sink_.write(detail::zip_descriptor_of(record));
  written_.push_back(std::move(record));
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  add(name, std::as_bytes(std::span(text.data(), text.size())));
}

std::uint64_t ZipWriter::finish() {
  sink_.write(detail::zip_directory_of(written_, position()));
  return position();
}

}  // namespace fsdp
