#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/hub/hub_settings.hpp"
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

// Where files go: huggingface_hub's cache layout, or a plain folder laid out as its local_dir.

/// Cache: CACHE/models--ORG--NAME/{blobs/HASH, snapshots/COMMIT/PATH -> blobs, refs/REVISION, trees/COMMIT.json}.
/// Local: DIR/PATH and DIR/.cache/huggingface/{download/PATH.metadata, trees/COMMIT.json}.
/// Ours, in a folder that others leave alone (.fsdp): partial/HASH, verified/..., manifest/COMMIT.json, ready/COMMIT.
/// What only helps later runs is written where it can be: a cache that may only be read serves what it has.
class SnapshotStore {
 public:
  /// \throws UsageError when `cache_dir` is empty
  static SnapshotStore in_cache(const std::filesystem::path& cache_dir, const RepoId& repo, bool symlinks);
  static SnapshotStore in_folder(const std::filesystem::path& local_dir);

  /// What users open.
  std::filesystem::path snapshot(const std::string& commit) const;
  /// Where a file's verified bytes lie (in the cache the same for all files of equal content).
  std::filesystem::path content(const RemoteFile& file) const;
  /// Folder of the claims and parts of a download.
  std::filesystem::path work_directory(const RemoteFile& file) const;
  std::filesystem::path manifest(const std::string& commit) const { return own_ / "manifest" / (commit + ".json"); }
  std::filesystem::path ready_mark(const std::string& commit) const { return own_ / "ready" / commit; }
  const std::filesystem::path& root() const { return root_; }

  /// For a cache that others may write in, too: makes sure that no symbolic link of theirs leads away on the way to a
  /// folder of this store, and no link at all where downloads make folders only (.fsdp, snapshots/COMMIT).
  /// \throws FormatError naming the link
  void refuse_links(const std::filesystem::path& folder) const;

  /// True when the content is there and was verified as it is now: same size, same time of change.
  bool is_verified(const RemoteFile& file) const;
  void set_verified(const RemoteFile& file) const;
  void forget_verified(const RemoteFile& file) const;

  /// Makes finished bytes the content. \throws IoError
  void publish(const std::filesystem::path& data, const RemoteFile& file) const;
  /// Makes the file appear in the snapshot, its content being there. \param source  the same content, for folders
  void add_to_snapshot(const std::string& commit, const RemoteFile& file, const std::filesystem::path& source) const;

  std::optional<std::string> read_ref(const std::string& revision) const;
  void write_ref(const std::string& revision, const std::string& commit) const;
  std::optional<std::vector<RemoteFile>> read_tree(const std::string& commit) const;
  void write_tree(const std::string& commit, const std::vector<RemoteFile>& files) const;
  /// Marks the cache for backup programs (CACHEDIR.TAG).
  void tag_cache() const;

 private:
  std::filesystem::path verified_record(const RemoteFile& file) const;
  void publish_if_possible(const std::filesystem::path& path, const std::string& text) const;
  bool local_ = false;
  bool symlinks_ = true;
  std::filesystem::path base_;  ///< the cache or the local folder
  std::filesystem::path root_;  ///< of the repository in the cache; huggingface_hub's own folder in a local one
  std::filesystem::path own_;   ///< .fsdp
};

/// The files of a snapshot of which no listing is kept, by path: its links point to blobs that are named by their hash.
/// Sizes are as found, 0 of a link that leads nowhere.
/// \param plain_files  also files that are no links, as there are where links cannot be made: their hash is ""
std::vector<RemoteFile> linked_files(const std::filesystem::path& snapshot, bool plain_files);

// Finding what fsdp-download or huggingface_hub has fetched; needs no network.

/// A path that exists is that path. Otherwise "ORG/NAME" or "ORG/NAME@REVISION" (main when none is named) is looked up
/// in the cache's refs and snapshots.
/// \param selection  what of it is needed, as fsdp-download's options: " --include config.json"; empty: all
/// \throws MissingInput saying where it was looked for and, for a name, the fsdp-download command that fetches it;
///         FormatError when the snapshot is a symbolic link
std::filesystem::path find_snapshot(const std::string& name, RepoType type, const HubSettings& settings,
                                    const std::string& selection = {});

}  // namespace fsdp
