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
  std::string blob_id;                    ///< git's SHA-1 (of large files: of their pointer)
  std::optional<std::string> lfs_sha256;  ///< of large files
  std::optional<std::string> xet_hash;

  /// Hash of the content and name of its blob in the cache.
  const std::string& hash() const { return lfs_sha256 ? *lfs_sha256 : blob_id; }
};

/// More than any file has: what a listing claims beyond that is wrong, and sums of sizes stay within 64 bits.
inline constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 50;

/// \throws FormatError when a file of that name could land outside its folder, its hash is none, or its size absurd
void check_remote_file(const RemoteFile& file);

/// A file's size as listings have it. \throws FormatError when it is no whole number from 0 on
std::uint64_t size_from_json(const nlohmann::json& size);

/// A listing as huggingface_hub keeps it in trees/COMMIT.json (format_version 1).
std::string tree_to_json(const std::vector<RemoteFile>& files);
/// \return empty when `text` is not such a file
std::optional<std::vector<RemoteFile>> tree_from_json(const std::string& text);

// Which files of a repository are wanted.

struct Selection {
  std::vector<std::string> include;  ///< patterns; none: everything
  std::vector<std::string> exclude;
  std::int64_t max_files = 0;  ///< the first so many by path; 0: all
  /// Leave out weights in other formats where there are safetensors.
  bool prefer_safetensors = true;

  /// One line that names it, for manifests.
  std::string words() const;
};

/// Python's fnmatchcase as huggingface_hub uses it: '*' matches '/' too, a pattern that ends with '/' means all below.
bool matches(const std::string& pattern, const std::string& path);

struct Selected {
  std::vector<RemoteFile> files;
  std::vector<RemoteFile> left_out;  ///< weights in other formats than safetensors
};

/// \throws UsageError when nothing is left
Selected select_files(const std::vector<RemoteFile>& all, const Selection& selection);

/// What is known of a repository without being told: laion/strategic_game_chess is a dataset of Parquet files, of
/// CodeLlama's *-hf repositories safetensors, configuration and tokenizer are wanted.
struct Preset {
  RepoType type = RepoType::model;
  std::vector<std::string> include;
};
/// The preset of a repository; an ordinary model's when there is none.
Preset preset_of(const std::string& repo_name);

}  // namespace fsdp
