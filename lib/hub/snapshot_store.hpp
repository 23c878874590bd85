#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

/// The downloaded and verified files of one commit. Stored in the cache, so that --verify needs no network.
struct SnapshotManifest {
  RepoId repo;
  std::string revision;  ///< as requested most recently
  std::string commit;
  std::string endpoint;
  std::string selection;
  std::vector<RemoteFile> files;  ///< files of all downloads of this commit, sorted by path

  /// Adds files and replaces those of equal path.
  void add(const std::vector<RemoteFile>& more);
};

/// \return nullopt when there is no manifest. \throws FormatError when it is damaged
std::optional<SnapshotManifest> read_manifest(const std::filesystem::path& path);
/// \throws IoError
void write_manifest(const std::filesystem::path& path, const SnapshotManifest& manifest);

/// Places of files in huggingface_hub's cache layout, or in a plain folder in the layout of its local_dir.
///
/// Cache: CACHE/models--ORG--NAME/{blobs/HASH, snapshots/COMMIT/PATH -> blobs, refs/REVISION, trees/COMMIT.json}.
/// Local: DIR/PATH and DIR/.cache/huggingface/{download/PATH.metadata, trees/COMMIT.json}.
/// The toolkit's own files are in .fsdp: partial/HASH, verified/..., manifest/COMMIT.json, ready/COMMIT.
/// Records that only speed up later runs are optional, so that a read-only cache is usable.
class SnapshotStore {
 public:
  /// \throws UsageError when `cache_dir` is empty
  static SnapshotStore in_cache(const std::filesystem::path& cache_dir, const RepoId& repo, bool symlinks);
  static SnapshotStore in_folder(const std::filesystem::path& local_dir);

  /// Folder of the commit's files, for users.
  std::filesystem::path snapshot(const std::string& commit) const;
  /// Path of a file's verified content; in the cache, files of equal content share it.
  std::filesystem::path content(const RemoteFile& file) const;
  /// Folder with the claims and partial files of a download.
  std::filesystem::path work_directory(const RemoteFile& file) const;
  std::filesystem::path manifest(const std::string& commit) const { return own_ / "manifest" / (commit + ".json"); }
  std::filesystem::path ready_mark(const std::string& commit) const { return own_ / "ready" / commit; }
  const std::filesystem::path& root() const { return root_; }

  /// Protects a cache that other users may write to: refuses their symbolic links on the path to a folder of this
  /// store, and any symbolic link where downloads create only folders (.fsdp, snapshots/COMMIT). \throws FormatError
  /// naming the link
  void refuse_links(const std::filesystem::path& folder) const;

  /// True when the content is present and has the size and modification time it had when it was verified.
  bool is_verified(const RemoteFile& file) const;
  void set_verified(const RemoteFile& file) const;
  void forget_verified(const RemoteFile& file) const;

  /// Moves a complete, verified file to content(file). \throws IoError
  void publish(const std::filesystem::path& data, const RemoteFile& file) const;
  /// Adds a file whose content is present to the snapshot.
  /// \param source  a file of the same content, which is copied into a local folder
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
  std::filesystem::path root_;  ///< the repository's folder in the cache, or .cache/huggingface in a local folder
  std::filesystem::path own_;   ///< .fsdp
};

/// Lists a snapshot that has no stored listing, sorted by path. Its symbolic links point to blobs named by their hash.
/// Sizes are those on disk, and 0 for a dangling link.
/// \param plain_files  include regular files, which replace links on file systems without them; their hash is ""
std::vector<RemoteFile> linked_files(const std::filesystem::path& snapshot, bool plain_files);

/// Finds a snapshot that fsdp-download or huggingface_hub fetched; needs no network. An existing path is returned as it
/// is. Otherwise, "ORG/NAME" or "ORG/NAME@REVISION" (default: main) is looked up in the cache's refs and snapshots.
/// \param selection  fsdp-download options for the needed files, such as " --include config.json"; empty for all
/// \throws MissingInput naming the searched places and, for a name, the fsdp-download command that fetches it;
///         FormatError when the snapshot is a symbolic link
std::filesystem::path find_snapshot(const std::string& name, RepoType type, const HubSettings& settings,
                                    const std::string& selection = {});
/// Refuses a model that find_snapshot() found by its name when the snapshot holds config.json alone, which is enough
/// for fsdp-memprobe only. \throws MissingInput
void refuse_config_alone(const std::string& name, const std::filesystem::path& found);

}  // namespace fsdp
