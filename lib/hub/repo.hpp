#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class RepoType { model, dataset };

/// A repository of the hub: "codellama/CodeLlama-7b-hf", or an old name without owner ("gpt2").
struct RepoId {
  RepoType type = RepoType::model;
  std::string name;

  /// \throws UsageError when `name` cannot be a repository's name
  static RepoId parse(RepoType type, const std::string& name);
  /// Folder in the cache: "models--codellama--CodeLlama-7b-hf"
  std::string folder() const;
  std::string type_word() const { return type == RepoType::model ? "model" : "dataset"; }
};

/// One file of a repository at one commit.
struct RemoteFile {
  std::string path;  ///< relative, with '/'
  std::uint64_t size_bytes = 0;
  std::string blob_id;                    ///< git's SHA-1 of the file, or of its LFS pointer for large files
  std::optional<std::string> lfs_sha256;  ///< SHA-256 of the content; large files only
  std::optional<std::string> xet_hash;

  /// Hash of the content, which is also the name of its blob in the cache.
  const std::string& hash() const { return lfs_sha256 ? *lfs_sha256 : blob_id; }
};

/// Upper limit for the size of a listed file. Larger sizes are refused, so that sums of sizes fit into 64 bits.
inline constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 50;

/// \throws FormatError when the path could lead out of its folder, or the hash or the size is invalid
void check_remote_file(const RemoteFile& file);

/// Reads a file size from a listing. \throws FormatError when it is not a non-negative integer
std::uint64_t size_from_json(const nlohmann::json& size);

/// Serializes a listing in the format of huggingface_hub's trees/COMMIT.json (format_version 1).
std::string tree_to_json(const std::vector<RemoteFile>& files);
/// Parses the output of tree_to_json(). \return nullopt when `text` is not in that format
std::optional<std::vector<RemoteFile>> tree_from_json(const std::string& text);

/// Selects files of a repository.
struct Selection {
  std::vector<std::string> include;  ///< patterns; none selects everything
  std::vector<std::string> exclude;
  std::int64_t max_files = 0;  ///< keep only this many files, in path order; 0 keeps all
  /// Skip weights in other formats when the repository has safetensors and no patterns are given.
  bool prefer_safetensors = true;

  /// The selection as one line, for manifests.
  std::string words() const;
};

/// Matches like Python's fnmatchcase as huggingface_hub uses it: '*' also matches '/', '?' and "[...]" match one
/// character, "[!...]" negates, backslashes are read as '/', and a pattern that ends with '/' matches everything below
/// that folder.
bool matches(const std::string& pattern, const std::string& path);

struct Selected {
  std::vector<RemoteFile> files;
  std::vector<RemoteFile> left_out;  ///< skipped weights in formats other than safetensors
};

/// \throws UsageError when no file is selected
Selected select_files(const std::vector<RemoteFile>& all, const Selection& selection);

/// Defaults for known repositories: laion/strategic_game_chess is a dataset of Parquet files; from CodeLlama's *-hf
/// repositories, safetensors, configuration and tokenizer are selected.
struct Preset {
  RepoType type = RepoType::model;
  std::vector<std::string> include;
};
/// The preset of a repository, or that of an ordinary model when none is known.
Preset preset_of(const std::string& repo_name);

}  // namespace fsdp
