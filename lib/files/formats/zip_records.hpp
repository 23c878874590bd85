#pragma once
// The headers of torch.save's zip dialect as bytes, and an archive of which they are known before its data is.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// An entry as headers and directory describe it; offsets count from the start of the archive.
struct ZipRecord {
  std::string name;  ///< with the archive's prefix
  std::uint64_t size_bytes = 0, header_bytes = 0;
  std::uint32_t crc32 = 0;
};

namespace detail {

/// Local header of an entry that starts at `header_at` of the archive, padded so that its data is aligned to 64 bytes.
std::string zip_local_header_of(std::string_view name, std::uint64_t size_bytes, std::uint64_t header_at);
/// What follows the data.
std::string zip_descriptor_of(const ZipRecord& record);
/// Central directory and end records; the directory starts at `directory_at` of the archive.
std::string zip_directory_of(std::span<const ZipRecord> records, std::uint64_t directory_at);

}  // namespace detail

/// An archive of which every offset is known while some of its entries' bytes are not.
class ZipPlan {
 public:
  /// Bytes of the archive that are no entry's data, at `offset_bytes` of it.
  struct Piece {
    std::uint64_t offset_bytes = 0;
    std::string bytes;
  };

  /// \param archive_name  prefix of all entry names; torch uses "archive" for streams
  explicit ZipPlan(std::string archive_name) : archive_name_(std::move(archive_name)) {}

  /// Entry `<archive_name>/<name>`.
  void add(std::string_view name, std::string text);
  /// An entry whose `size_bytes` bytes come later. Returns where in the archive they go.
  std::uint64_t add_data(std::string_view name, std::uint64_t size_bytes);
  /// After the last entry.
  void finish();

  std::uint64_t size_bytes() const { return size_bytes_; }
  /// From the start of the archive to the first entry that comes later, or all of it when there is none.
  std::string head() const;
  /// Everything else but that data. \param crcs  CRC-32 of the entries of add_data(), in that order
  std::vector<Piece> tail(std::span<const std::uint32_t> crcs) const;

 private:
  struct Entry {
    ZipRecord record;
    std::string text;
    bool later = false;
  };
  std::uint64_t append(Entry entry, std::string_view name, std::uint64_t entry_bytes);

  std::string archive_name_;
  std::vector<Entry> entries_;
  std::uint64_t size_bytes_ = 0;  // of the entries; with the directory once finished
  std::uint64_t directory_at_ = 0;
};

}  // namespace fsdp
