#pragma once
// Downloading a snapshot of a repository, and verifying a downloaded one.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/hub/hub_failure.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {

struct DownloadOptions {
  RepoId repo;
  std::string revision = "main";
  Selection selection;
  std::optional<std::filesystem::path> local_dir;  ///< download into this folder instead of the cache
  int jobs = 8;                                    ///< concurrent connections
  std::uint64_t part_bytes = 64u << 20;            ///< largest byte range that one request fetches
  std::uint64_t piece_bytes = 1u << 20;  ///< write and journal granularity: the most that a killed connection loses
  RetryPolicy retries;
  /// A claim whose heartbeat has been silent for this long is taken over.
  std::chrono::milliseconds takeover_after = std::chrono::seconds(90);
};

struct DownloadReport {
  std::string commit;
  std::filesystem::path snapshot;
  std::filesystem::path ready_mark;
  std::vector<RemoteFile> files;     ///< the selected files
  std::vector<std::string> ignored;  ///< paths of the repository's other files
  std::vector<std::string> missing;  ///< paths that were missing before this call
  std::uint64_t total_bytes = 0;     ///< size of the selected files; identical contents count once
  std::uint64_t missing_bytes = 0;   ///< bytes that had to be fetched
  std::uint64_t received_bytes = 0;  ///< bytes received over the network
  double seconds = 0;
};

/// The store that the options select: the local folder, or the repository's place in the cache.
SnapshotStore store_of(const DownloadOptions& options, const HubSettings& settings);

/// Downloads the selected files of a revision into the cache or the local folder and verifies each by its hash. Several
/// processes, on several hosts, may download one repository concurrently. With settings.offline the function only
/// checks that every file is present.
/// \param stop  called several times a second; returning true ends the download
/// \throws DownloadStopped when `stop` returned true; a later call resumes from the bytes on disk. Error otherwise
DownloadReport download_snapshot(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                                 const std::function<bool()>& stop);

/// Reports what download_snapshot() would do. Requests only the file listing from the hub.
DownloadReport plan_download(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                             const std::function<bool()>& stop);

struct SnapshotReport {
  struct Problem {
    std::string path;
    std::string what;
  };
  std::string commit;
  std::filesystem::path snapshot;
  std::string source;  ///< where the expected hashes come from, for messages
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::vector<Problem> problems;
  double seconds = 0;
};

/// Reads every file of a snapshot and compares its hash; needs no network. The expected hashes come from the manifest
/// of earlier downloads, or else from the listing that huggingface_hub keeps, or else from the names of the blobs. The
/// next download fetches damaged files again; the ready mark is removed if there are any. \throws MissingInput when
/// there is no snapshot; DownloadStopped
SnapshotReport verify_snapshot(const DownloadOptions& options, const HubSettings& settings,
                               const std::function<bool()>& stop);

}  // namespace fsdp
