#pragma once
// Which bytes of a partial download are on disk, with a checksum each: a file that is only appended to.
//
// Line 1: "fsdp-partial 1 HASH SIZE"; then "BEGIN END CRC32" per piece, decimal and 8 hexadecimal digits. A line
// without its end, or with other content, counts for nothing: what a crash left is then downloaded again.
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/hub/interval_set.hpp"

namespace fsdp {

struct JournalEntry {
  ByteRange range;
  std::uint32_t crc32 = 0;
};

std::uint32_t crc32_of(std::span<const std::byte> bytes);

/// Entries of the journal at `path`, ascending by their begin; none when there is no file or it is another content's.
/// Every range lies in [0, size_bytes) and is at most kLongestPieceBytes long.
std::vector<JournalEntry> read_journal(const std::filesystem::path& path, const std::string& hash,
                                       std::uint64_t size_bytes);

/// Longest piece that one line may stand for: what reading it back may take of memory.
inline constexpr std::uint64_t kLongestPieceBytes = 1 << 26;

/// Appends to a journal. Thread-safe.
class PartialJournal {
 public:
  /// Goes on with the journal at `path`, or begins one. \throws IoError
  PartialJournal(const std::filesystem::path& path, const std::string& hash, std::uint64_t size_bytes);
  void append(const JournalEntry& entry);
  /// Forgets all entries.
  void clear();

 private:
  std::string first_line_;
  File file_;
  std::mutex mutex_;
};

}  // namespace fsdp
