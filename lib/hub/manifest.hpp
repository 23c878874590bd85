#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/hub/repo.hpp"

namespace fsdp {

/// What was downloaded and verified of one commit, kept beside it so that --verify needs no network.
struct SnapshotManifest {
  RepoId repo;
  std::string revision;  ///< as it was asked for last
  std::string commit;
  std::string endpoint;
  std::string selection;
  std::vector<RemoteFile> files;  ///< of all downloads of this commit, by path

  /// Adds files; those of the same path are replaced.
  void add(const std::vector<RemoteFile>& more);
};

/// nullopt when there is none. \throws FormatError when it is damaged
std::optional<SnapshotManifest> read_manifest(const std::filesystem::path& path);
/// \throws IoError
void write_manifest(const std::filesystem::path& path, const SnapshotManifest& manifest);

}  // namespace fsdp
