#pragma once
// Encoded texts that are kept for the next run: OUT/token-cache of fsdp-finetune, --cache-dir of fsdp-eval. Any number
// of jobs may share it.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/claim.hpp"
#include "lib/training/data/prepare_data.hpp"

namespace fsdp {

/// The cache's folder in fsdp-finetune's --out-dir; no run may have this name.
inline constexpr const char* kTokenCacheName = "token-cache";

/// A number of all that decides the tokens: the files of the texts (path, size, time of change, first and last 256
/// KiB), the contents of the tokenizer's files and of the chat template, the selection, this program's version. \throws
/// IoError when one of the files cannot be read
std::uint64_t token_fingerprint(const std::vector<std::filesystem::path>& files, const TextOptions& options);

class TokenCache {
 public:
  /// Makes the folder. One that was not there is marked as a cache (CACHEDIR.TAG); only in such a one files are ever
  /// removed. \throws IoError
  explicit TokenCache(std::filesystem::path directory);

  /// The file that keeps the tokens of `data`: "STEM-FINGERPRINT.h5".
  std::filesystem::path entry(const std::filesystem::path& data, std::uint64_t fingerprint) const;
  /// True when `entry` is there; notes that it was used.
  static bool holds(const std::filesystem::path& entry);
  /// Removes what the programs wrote here and none used for `kKept`, if the folder is marked. A file that cannot be
  /// removed stays.
  void remove_unused() const;

  static constexpr std::chrono::hours kKept{24 * 30};

 private:
  std::filesystem::path directory_;
};

/// The right to write an entry, while it lives: of several jobs that need one, one encodes and the others wait.
class EntryClaim {
 public:
  /// Waits for another job that writes `entry`, until it is there or that job is gone.
  /// \param waiting  told once, with the words for that job \throws RuntimeFailure after stop_wanted; IoError
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
