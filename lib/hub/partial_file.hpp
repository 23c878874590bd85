#pragma once
// Which bytes of a partial download are on disk, with a checksum each: a file that is only appended to.
//
// Line 1: "fsdp-partial 1 HASH SIZE"; then "BEGIN END CRC32" per piece, decimal and 8 hexadecimal digits. A line
// without its end, or with other content, counts for nothing: what a crash left is then downloaded again.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/hub/content_hash.hpp"
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

// A file that arrives in pieces, in any order, from several threads, and over several processes' lives.

/// Owned by whoever holds the claim of `work_directory` (claim.hpp): part.GENERATION/{data,journal}.
///
/// What earlier owners left is taken over: by one rename when its writer is gone, by copying when the writer might
/// still live, so that no two processes ever write one file. Bytes taken over are read again and compared with the
/// journal; the network is not asked. The hash of the content is computed from the front as far as it is complete,
/// always from the bytes on disk. Thread-safe.
class PartialFile {
 public:
  /// \param hash        the content's, SHA-256 or git's SHA-1
  /// \param work_directory  folder of this content's claims
  /// \param stop        asked while reading long files; true leaves with what was found so far
  /// \throws IoError (disk full, quota, ...)
  PartialFile(std::filesystem::path work_directory, std::uint64_t generation, std::string hash,
              std::uint64_t size_bytes, const std::function<bool()>& stop);

  /// Adds bytes that came from the network.
  void store(std::uint64_t begin, std::span<const std::byte> bytes);

  /// The next bytes that are neither there nor given to anyone, at most `max_bytes`; nothing when there are none.
  std::optional<ByteRange> take(std::uint64_t max_bytes);
  /// Everything that is not there, given to one: nothing while others have some of it.
  std::vector<ByteRange> take_all();
  void give_back(const std::vector<ByteRange>& ranges);

  /// Bytes that were there when this object was made.
  std::uint64_t adopted_bytes() const { return adopted_bytes_; }
  std::uint64_t present_bytes() const;
  /// True when all bytes are there; then finish() tells whether they are right.
  bool complete() const;
  /// Syncs the data to disk and returns the hash of all of it. Call once, when complete.
  std::string finish();
  /// Forgets all bytes: they were wrong.
  void start_over();

  const std::filesystem::path& data_path() const { return data_path_; }

 private:
  void adopt_by_rename(std::uint64_t generation);
  void open_files();
  void check_own_journal(const std::function<bool()>& stop);
  void copy_from_others(const std::function<bool()>& stop);
  void advance_hash();
  void hash_present_bytes();  ///< with hash_mutex_ held

  std::filesystem::path work_directory_;
  std::string hash_;
  std::uint64_t size_bytes_;
  std::filesystem::path part_;
  std::filesystem::path data_path_;
  File data_;
  std::unique_ptr<PartialJournal> journal_;
  std::uint64_t adopted_bytes_ = 0;

  mutable std::mutex mutex_;  ///< of the next two
  IntervalSet present_;
  IntervalSet given_;

  std::mutex hash_mutex_;  ///< of the next three
  ContentHash hasher_;
  std::uint64_t hashed_bytes_ = 0;
  std::vector<std::byte> hash_buffer_;
};

/// Bytes that a run could take over from what lies in `work_directory`, by its journals (not read back).
std::uint64_t estimate_partial_bytes(const std::filesystem::path& work_directory, const std::string& hash,
                                     std::uint64_t size_bytes);

}  // namespace fsdp
