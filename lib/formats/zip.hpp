#pragma once
// The zip dialect of torch.save: every entry stored, none compressed, data aligned to 64 bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {

class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual std::string name() const = 0;  ///< for messages
  virtual std::uint64_t size_bytes() const = 0;
  /// Fills `out` with the bytes from `offset_bytes` on. \throws FormatError when the bytes end too early; IoError
  virtual void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const = 0;
};

/// The file must outlive it.
class FileAccess : public RandomAccess {
 public:
  explicit FileAccess(const File& file) : file_(file) {}
  std::string name() const override { return file_.path().string(); }
  std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    file_.read_at(offset_bytes, out);
  }

 private:
  const File& file_;
};

class MemoryAccess : public RandomAccess {
 public:
  MemoryAccess(std::string name, std::string bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}
  std::string name() const override { return name_; }
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > bytes_.size() || out.size() > bytes_.size() - offset_bytes) {
      throw FormatError(name_, bytes_.size(), "the data ends here, more was expected");
    }
    const auto from = std::as_bytes(std::span(bytes_.data(), bytes_.size())).subspan(offset_bytes, out.size());
    std::copy(from.begin(), from.end(), out.begin());
  }

 private:
  std::string name_, bytes_;
};

/// An entry as headers and central directory describe it. Offsets count from the start of the archive.
struct ZipRecord {
  std::string name;  ///< with the prefix of the archive
  std::uint64_t size_bytes = 0, header_bytes = 0;
  std::uint32_t crc32 = 0;
};

namespace detail {

inline constexpr std::uint32_t kZipLocalHeader = 0x04034b50;  ///< first bytes of a local header
inline constexpr std::size_t kZipLocalHeaderBytes = 30;       ///< without name and extra field

/// The local header of an entry at `header_at` of the archive, padded so that the data is aligned to 64 bytes.
std::string zip_local_header_of(std::string_view name, std::uint64_t size_bytes, std::uint64_t header_at);
/// The data descriptor, which follows the data of an entry.
std::string zip_descriptor_of(const ZipRecord& record);
/// The central directory and the end records. The directory starts at `directory_at` of the archive.
std::string zip_directory_of(std::span<const ZipRecord> records, std::uint64_t directory_at);

}  // namespace detail

/// An archive whose offsets are all known while the bytes of some entries are not.
class ZipPlan {
 public:
  /// Bytes of the archive, at `offset_bytes`, that are not the data of a late entry.
  struct Piece {
    std::uint64_t offset_bytes = 0;
    std::string bytes;
  };

  /// \param archive_name  prefix of all entry names; torch uses "archive" for streams
  explicit ZipPlan(std::string archive_name) : archive_name_(std::move(archive_name)) {}

  /// Entry `<archive_name>/<name>`.
  void add(std::string_view name, std::string text);
  /// Adds a late entry: its `size_bytes` bytes are written by the caller. Returns their offset in the archive.
  std::uint64_t add_data(std::string_view name, std::uint64_t size_bytes);
  /// Must be called after the last entry.
  void finish();

  std::uint64_t size_bytes() const { return size_bytes_; }
  /// The bytes from the start of the archive to the data of the first late entry, or the whole archive when there is
  /// none.
  std::string head() const;
  /// The bytes after head(), without the data of late entries.
  /// \param crcs  CRC-32 of the entries of add_data(), in the order of the calls
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
  std::uint64_t size_bytes_ = 0;  // of the entries; after finish(), with the directory
  std::uint64_t directory_at_ = 0;
};

struct ZipEntry {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;  ///< 0 also means that none is recorded (torch.serialization.set_crc32_options(False))
  std::uint64_t header_bytes = 0;    ///< file offset of its local header
  std::uint64_t data_end_limit = 0;  ///< file offset that the data must not pass: the next header or the directory
};

/// Reads a zip archive that fills exactly the bytes [begin, begin + length) of a file.
class ZipReader {
 public:
  /// Reads the central directory. The file must outlive the reader.
  /// \throws FormatError on anything but a well-formed archive of stored entries
  ZipReader(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes);
  ZipReader(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Null when the archive has no such entry.
  const ZipEntry* find(std::string_view name) const;
  /// The only entry whose name ends in `suffix`. \throws FormatError when there is none or more than one
  const ZipEntry& find_suffix(std::string_view suffix) const;

  /// File offset of the data of the entry, from its local header.
  /// \throws FormatError when the local header contradicts the central directory
  std::uint64_t data_offset(const ZipEntry& entry) const;
  /// Fills `out`, which has the size of the entry, and checks the CRC-32. \throws FormatError naming file, entry and
  /// offset
  void read(const ZipEntry& entry, std::span<std::byte> out) const;
  /// Reads the whole entry. \throws FormatError as read(), and when the entry is longer than `limit_bytes`
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

}  // namespace fsdp
