#pragma once
// Downloading a snapshot of a repository, and verifying a downloaded one.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/hub/hub_failure.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {

struct DownloadOptions {
  RepoId repo;
  std::string revision = "main";
  Selection selection;
  std::optional<std::filesystem::path> local_dir;  ///< instead of the cache
  int jobs = 8;                                    ///< connections at once
  std::uint64_t part_bytes = 64u << 20;            ///< of a large file that one request asks for
  std::uint64_t piece_bytes = 1u << 20;  ///< written and journalled at once: what a kill can lose, per connection
  RetryPolicy retries;
  std::chrono::milliseconds takeover_after = std::chrono::seconds(90);
};

struct DownloadReport {
  std::string commit;
  std::filesystem::path snapshot;
  std::filesystem::path ready_mark;
  std::vector<RemoteFile> files;     ///< that were selected
  std::vector<std::string> missing;  ///< paths that were not there, before
  std::uint64_t total_bytes = 0;     ///< of the selected files, contents counted once
  std::uint64_t missing_bytes = 0;   ///< that were to be fetched
  std::uint64_t received_bytes = 0;  ///< that came over the network
  double seconds = 0;
};

/// The store that the options name.
SnapshotStore store_of(const DownloadOptions& options, const HubSettings& settings);

/// Brings the selected files of a revision into the cache or the local folder, each verified by its hash. May run in
/// several processes at once, on several hosts, also for the same repository. Offline (settings.offline) it only looks
/// whether everything is there.
/// \param stop  asked several times a second; true ends the work
/// \throws DownloadStopped with a state that a later call goes on with; Error otherwise
DownloadReport download_snapshot(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                                 const std::function<bool()>& stop);

/// What download_snapshot() would do; asks the hub for the listing only.
DownloadReport plan_download(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                             const std::function<bool()>& stop);

struct VerifyReport {
  struct Problem {
    std::string path;
    std::string what;
  };
  std::string commit;
  std::filesystem::path snapshot;
  std::string source;  ///< what the expected hashes come from
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::vector<Problem> problems;
  double seconds = 0;
};

/// Reads every file of a snapshot and compares its hash; needs no network. What should be there comes from the manifest
/// of earlier downloads, else from the listing that huggingface_hub keeps, else from the names of the blobs. Files that
/// are found wrong will be fetched again by the next download, and the ready mark is removed.
/// \throws MissingInput when there is no snapshot; DownloadStopped
VerifyReport verify_snapshot(const DownloadOptions& options, const HubSettings& settings,
                             const std::function<bool()>& stop);

}  // namespace fsdp
