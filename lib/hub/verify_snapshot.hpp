#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/hub/download_options.hpp"
#include "lib/hub/hub_settings.hpp"

namespace fsdp {

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
