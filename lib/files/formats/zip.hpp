#pragma once
// The zip dialect of torch.save: every entry stored, none compressed, data aligned to 64 bytes.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/formats/byte_sink.hpp"
#include "lib/files/formats/random_access.hpp"
#include "lib/files/formats/zip_records.hpp"

namespace fsdp {

struct ZipEntry {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;           ///< 0 also means "not recorded" (torch.serialization.set_crc32_options(False))
  std::uint64_t header_bytes = 0;    ///< file offset of its local header
  std::uint64_t data_end_limit = 0;  ///< file offset its data must not pass: the next header or the directory
};

/// A zip archive that fills exactly the bytes [begin, begin + length) of a file.
class ZipReader {
 public:
  /// Reads the central directory. \throws FormatError on anything but a well-formed archive of stored entries
  /// The file must outlive it.
  ZipReader(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes);
  ZipReader(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Null when absent.
  const ZipEntry* find(std::string_view name) const;
  /// The only entry whose name ends in `suffix`. \throws FormatError when there is none or more than one
  const ZipEntry& find_suffix(std::string_view suffix) const;

  /// File offset of the entry's data, from its local header. \throws FormatError when that contradicts the directory
  std::uint64_t data_offset(const ZipEntry& entry) const;
  /// Fills `out`, which has the entry's size, and checks the CRC-32. \throws FormatError naming file, entry and offset
  void read(const ZipEntry& entry, std::span<std::byte> out) const;
  /// The whole entry. \throws FormatError also when it is longer than `limit_bytes`
  std::string read_text(const ZipEntry& entry, std::uint64_t limit_bytes = 1ull << 30) const;

 private:
  struct Directory {
    std::uint64_t offset_bytes, length_bytes, num_entries;
  };
  Directory locate_directory(std::uint64_t length_bytes) const;
  void parse_directory(const Directory& directory);
  void check_extents(std::uint64_t directory_bytes);
  [[noreturn]] void fail(std::uint64_t offset_bytes, const std::string& what) const;

  std::shared_ptr<const RandomAccess> input_;
  std::uint64_t begin_bytes_;
  std::vector<ZipEntry> entries_;  // in file order
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// Writes an archive in torch's layout to a sink, from the sink's position on.
class ZipWriter {
 public:
  /// \param archive_name  prefix of all entry names; torch uses "archive" for streams
  ZipWriter(ByteSink& sink, std::string archive_name);
  /// Entry `<archive_name>/<name>`; `data` goes straight to the sink.
  void add(std::string_view name, std::span<const std::byte> data);
  void add(std::string_view name, std::string_view text);
  /// Writes the central directory. Returns the archive's length.
  std::uint64_t finish();

 private:
  std::uint64_t position() const { return sink_.position() - begin_bytes_; }

  ByteSink& sink_;
  std::uint64_t begin_bytes_;
  std::string archive_name_;
  std::vector<ZipRecord> written_;
};

}  // namespace fsdp
