#pragma once
// Downloading a snapshot of a repository.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/hub/download_options.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {

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

}  // namespace fsdp
