#pragma once
// Partial downloads: the journal of the pieces that are on disk, and the file that they belong to.
//
// The journal is an append-only text file.
//
// Line 1: "fsdp-partial 1 HASH SIZE"; then "BEGIN END CRC32" per piece, decimal and 8 hexadecimal digits. Incomplete or
// malformed lines, which a crash may leave, are ignored; their bytes are downloaded again.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/hub/content_hash.hpp"

namespace fsdp {

/// The bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// A set of byte positions, stored as disjoint, non-adjacent ranges.
class IntervalSet {
 public:
  void add(ByteRange range);
  void subtract(ByteRange range);
  bool contains(ByteRange range) const;
  /// End of the range that contains `position`, or `position` itself when no range does.
  std::uint64_t run_end(std::uint64_t position) const;
  /// The parts of `range` that are not in the set, in ascending order.
  std::vector<ByteRange> missing(ByteRange range) const;
  /// The parts of `range` that are in the set, in ascending order.
  std::vector<ByteRange> within(ByteRange range) const;
  std::vector<ByteRange> ranges() const;
  std::uint64_t size() const;  ///< bytes in the set
  bool empty() const { return ends_.empty(); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  ///< begin -> end
};

struct JournalEntry {
  ByteRange range;
  std::uint32_t crc32 = 0;
};

std::uint32_t crc32_of(std::span<const std::byte> bytes);

/// Entries of the journal at `path`, sorted by begin; none when the file is missing or belongs to another content.
/// Every range lies in [0, size_bytes) and is at most kLongestPieceBytes long.
std::vector<JournalEntry> read_journal(const std::filesystem::path& path, const std::string& hash,
                                       std::uint64_t size_bytes);

/// Longest piece of one line, which bounds the memory for reading a piece back.
inline constexpr std::uint64_t kLongestPieceBytes = 1 << 26;

/// Appends to a journal. Thread-safe.
class PartialJournal {
 public:
  /// Continues the journal at `path` or creates one. \throws IoError
  PartialJournal(const std::filesystem::path& path, const std::string& hash, std::uint64_t size_bytes);
  void append(const JournalEntry& entry);
  /// Removes all entries.
  void clear();

 private:
  std::string first_line_;
  File file_;
  std::mutex mutex_;
};

/// A file that arrives in pieces, in any order and from several threads, and whose download may span several processes.
/// The holder of the claim on `work_directory` (lib/base/files/claim.hpp) owns part.GENERATION/{data,journal}.
///
/// Data of earlier owners is reused: by a rename when the writer has ended, and by a copy when the writer may still
/// run, so that no two processes write one file. Reused bytes are read back and compared with the journal's checksums.
/// The hash of the content advances from the start of the file to the first gap and is computed from the bytes on disk.
/// Thread-safe.
class PartialFile {
 public:
  /// \param work_directory  folder of this content's claims
  /// \param generation      number of this process's claim
  /// \param hash            hash of the content, SHA-256 or git's SHA-1
  /// \param stop            called while long files are read; returning true ends the search for reusable bytes
  /// \throws IoError (disk full, quota, ...)
  PartialFile(std::filesystem::path work_directory, std::uint64_t generation, std::string hash,
              std::uint64_t size_bytes, const std::function<bool()>& stop);

  /// Writes bytes at `begin` and records them in the journal.
  void store(std::uint64_t begin, std::span<const std::byte> bytes);

  /// Reserves the next range, of at most `max_bytes`, that is neither on disk nor reserved; nullopt when there is none.
  std::optional<ByteRange> take(std::uint64_t max_bytes);
  /// Reserves all missing bytes for one caller; empty while any range is reserved.
  std::vector<ByteRange> take_all();
  /// Cancels the reservation of `ranges`.
  void give_back(const std::vector<ByteRange>& ranges);

  /// Number of bytes reused from earlier owners.
  std::uint64_t adopted_bytes() const { return adopted_bytes_; }
  std::uint64_t present_bytes() const;
  /// True when every byte is on disk; finish() then returns the hash to compare.
  bool complete() const;
  /// Syncs the data to disk and returns the hash of the content. Call once, when complete() is true.
  std::string finish();
  /// Discards all bytes, because their hash was wrong.
  void start_over();

  const std::filesystem::path& data_path() const { return data_path_; }

 private:
  void adopt_by_rename(std::uint64_t generation);
  void open_files();
  void check_own_journal(const std::function<bool()>& stop);
  void copy_from_others(const std::function<bool()>& stop);
  void advance_hash();
  void hash_present_bytes();  ///< requires hash_mutex_

  std::filesystem::path work_directory_;
  std::string hash_;
  std::uint64_t size_bytes_;
  std::filesystem::path part_;
  std::filesystem::path data_path_;
  File data_;
  std::unique_ptr<PartialJournal> journal_;
  std::uint64_t adopted_bytes_ = 0;

  mutable std::mutex mutex_;  ///< guards present_ and given_
  IntervalSet present_;
  IntervalSet given_;

  std::mutex hash_mutex_;  ///< guards hasher_, hashed_bytes_ and hash_buffer_
  ContentHash hasher_;
  std::uint64_t hashed_bytes_ = 0;
  std::vector<std::byte> hash_buffer_;
};

/// Number of bytes that a run could reuse according to the journals in `work_directory`; the data is not read back.
std::uint64_t estimate_partial_bytes(const std::filesystem::path& work_directory, const std::string& hash,
                                     std::uint64_t size_bytes);

}  // namespace fsdp
