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

}  // namespace fsdp
