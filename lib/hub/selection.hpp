#pragma once
// Which files of a repository are wanted.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/hub/repo.hpp"

namespace fsdp {

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
