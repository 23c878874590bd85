#include "lib/encoding/batch_file.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

static_assert(std::endian::native == std::endian::little);

struct BatchHeader {
  std::uint64_t documents = 0, ids = 0, place_bytes = 0, crc = 0;
};

std::size_t id_bytes(const BatchFileOptions& options) { return options.vocab_size <= 65536 ? 2 : 4; }

/// \param data  all after the header
std::uint64_t crc_of(BatchHeader header, std::span<const std::byte> data) {
  header.crc = 0;
  const auto of_header = ::crc32_z(0, reinterpret_cast<const Bytef*>(&header), sizeof header);
  return ::crc32_z(of_header, reinterpret_cast<const Bytef*>(data.data()), data.size());
}

template <class Value>
void append(std::span<const Value> values, std::vector<std::byte>& bytes) {
  const auto raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

template <class Id>
void append_ids(std::span<const std::int32_t> ids, std::vector<std::byte>& bytes) {
  const std::vector<Id> narrow(ids.begin(), ids.end());  // the pipeline has checked them
  append(std::span<const Id>(narrow), bytes);
}

}  // namespace

BatchFileWriter::BatchFileWriter(std::filesystem::path file, BatchFileOptions options)
    : file_(std::move(file)),
      temporary_(file_.parent_path() / ("." + file_.filename().string() + "." + process_tag() + ".tmp")),
      options_(options),
      handle_(File::create(temporary_)) {}

BatchFileWriter::~BatchFileWriter() {
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void BatchFileWriter::add(const EncodedBatch& batch) {
  BatchHeader header{.documents = batch.ends.size(), .ids = batch.ids.size()};
  if (header.documents == 0) return;
  std::vector<std::byte> bytes(sizeof header);
  std::vector<std::uint64_t> lengths;
  std::size_t begin = 0;
  for (const auto end : batch.ends) {
    lengths.push_back(end - begin);
    begin = end;
  }
  append(std::span<const std::uint64_t>(lengths), bytes);
  const std::span<const std::int32_t> ids(batch.ids);
  id_bytes(options_) == 2 ? append_ids<std::uint16_t>(ids, bytes) : append_ids<std::uint32_t>(ids, bytes);
  if (options_.masked) append(std::span<const std::uint8_t>(batch.mask), bytes);
  if (options_.places) {
    const auto before = bytes.size();
    for (const auto& place : batch.places) {
      append(std::span<const char>(place), bytes);
      bytes.push_back(std::byte{0});
    }
    header.place_bytes = bytes.size() - before;
  }
  header.crc = crc_of(header, std::span(bytes).subspan(sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  handle_.write(bytes);
  bytes_ += bytes.size();
}

std::uint64_t BatchFileWriter::finish() {
  handle_.sync();
  handle_.close();
  std::error_code error;
  std::filesystem::rename(temporary_, file_, error);
  if (error) throw IoError(file_.string() + ": cannot be given its name: " + error.message());
  return bytes_;
}

BatchFileReader::BatchFileReader(const std::filesystem::path& file, BatchFileOptions options)
    : handle_(File::open_read(file)), options_(options), size_(handle_.size_bytes()) {}

void BatchFileReader::fail() const {
  throw FormatError(
      fmt::format("{}: byte {}: is damaged: remove this file and the one that ends in .json, and run the "
                  "same command again",
                  handle_.path().string(), at_));
}

bool BatchFileReader::next(EncodedBatch& batch) {
  if (at_ == size_) return false;
  BatchHeader header;
  if (size_ - at_ < sizeof header) fail();
  handle_.read_at(at_, std::as_writable_bytes(std::span(&header, 1)));
  // None is larger than the file, so that no sum overflows.
  const auto left = size_ - at_ - sizeof header, width = id_bytes(options_);
  if (header.documents > left / sizeof(std::uint64_t) || header.ids > left / width || header.place_bytes > left) fail();
  const auto bytes =
      header.documents * sizeof(std::uint64_t) + header.ids * (width + (options_.masked ? 1 : 0)) + header.place_bytes;
  if (bytes > left) fail();
  std::vector<std::byte> data(bytes);
  handle_.read_at(at_ + sizeof header, data);
  if (header.documents == 0 || crc_of(header, data) != header.crc) fail();
  const auto* from = data.data();
  batch = {};
  std::vector<std::uint64_t> lengths(header.documents);
  std::memcpy(lengths.data(), from, lengths.size() * sizeof lengths[0]);
  from += lengths.size() * sizeof lengths[0];
  std::uint64_t end = 0;
  for (const auto length : lengths) {
    if (length > header.ids - end) fail();
    batch.ends.push_back(end += length);
  }
  if (end != header.ids) fail();
  batch.ids.resize(header.ids);
  for (auto& id : batch.ids) {
    std::uint32_t wide = 0;
    std::memcpy(&wide, from, width);
    id = static_cast<std::int32_t>(wide);
    from += width;
  }
  batch.mask.assign(header.ids, 1);
  if (options_.masked && header.ids > 0) std::memcpy(batch.mask.data(), from, header.ids);
  if (options_.masked) from += header.ids;
  const std::string_view places(reinterpret_cast<const char*>(from), header.place_bytes);
  for (std::size_t begin = 0; begin < places.size();) {
    const auto stop = std::min(places.find('\0', begin), places.size());
    batch.places.emplace_back(places.substr(begin, stop - begin));
    begin = stop + 1;
  }
  if (batch.places.size() != (options_.places ? header.documents : 0)) fail();
  at_ += sizeof header + bytes;
  return true;
}

}  // namespace fsdp::detail
