#pragma once
// Cache of encoded texts for later runs: OUT/token-cache of fsdp-finetune, --cache-dir of fsdp-eval. Any number of jobs
// may share one.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/claim.hpp"
#include "lib/training/data/prepare_data.hpp"

namespace fsdp {

/// The cache's folder in fsdp-finetune's --out-dir; no run may have this name.
inline constexpr const char* kTokenCacheName = "token-cache";

/// Hash of everything that decides the tokens: the files of the texts (path, size, modification time, first and last
/// 256 KiB), the contents of the tokenizer's files and of the chat template, the selection, the part of a split, the
/// length of the rows where options.layout is a stream, the version of this program. \throws IoError when one of the
/// files cannot be read
std::uint64_t token_fingerprint(const std::vector<std::filesystem::path>& files, const TextOptions& options);

class TokenCache {
 public:
  /// Creates the folder. A new folder is marked as a cache (CACHEDIR.TAG); files are only ever removed from marked
  /// folders. \throws IoError
  explicit TokenCache(std::filesystem::path directory);

  /// The file that keeps the tokens of `data`, "STEM-FINGERPRINT.h5", or what is known of them, ".ids.json",
  /// ".reference.npy".
  std::filesystem::path entry(const std::filesystem::path& data, std::uint64_t fingerprint,
                              std::string_view ending = ".h5") const;
  /// True when `entry` exists; updates its access time.
  static bool holds(const std::filesystem::path& entry);
  /// Removes entries that were not used for `kKept`, if the folder is marked. Ignores files that cannot be removed.
  void remove_unused() const;

  static constexpr std::chrono::hours kKept{24 * 30};

 private:
  std::filesystem::path directory_;
};

/// Exclusive right to write an entry, for the life of this object: one job encodes, others that need the entry wait.
class EntryClaim {
 public:
  /// Waits until no other job writes `entry`.
  /// \param waiting  called once with the description of the other job
  /// \throws RuntimeFailure after stop_wanted returned true; IoError
  EntryClaim(const std::filesystem::path& entry, const std::function<bool()>& stop_wanted,
             const std::function<void(const std::string&)>& waiting);
  EntryClaim(const EntryClaim&) = delete;
  EntryClaim& operator=(const EntryClaim&) = delete;
  ~EntryClaim();

 private:
  std::shared_ptr<Claim> claim_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace fsdp
