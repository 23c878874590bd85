#include "lib/hub/selection.hpp"

#include <fnmatch.h>

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

bool matches_any(const std::vector<std::string>& patterns, const std::string& path) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, path); });
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const std::vector<std::string> kOtherWeights{"*.bin", "*.bin.index.json", "*.pt", "*.pth",  "*.ckpt",
                                             "*.h5",  "*.msgpack",        "*.ot", "*.onnx", "*.gguf"};

}  // namespace

std::string Selection::words() const {
  std::string text = include.empty() ? "all files" : "include " + joined(include);
  if (!exclude.empty()) text += "; exclude " + joined(exclude);
  if (max_files > 0) text += "; at most " + std::to_string(max_files) + " files";
  if (!prefer_safetensors) text += "; weights in all formats";
  return text;
}

bool matches(const std::string& pattern, const std::string& path) {
  const auto whole = !pattern.empty() && pattern.back() == '/' ? pattern + "*" : pattern;
  return ::fnmatch(whole.c_str(), path.c_str(), FNM_NOESCAPE) == 0;
}

Selected select_files(const std::vector<RemoteFile>& all, const Selection& selection) {
  Selected selected;
  for (const auto& file : all) {
    const bool in = selection.include.empty() || matches_any(selection.include, file.path);
    if (in && !matches_any(selection.exclude, file.path)) selected.files.push_back(file);
  }
  const bool has_safetensors = std::any_of(selected.files.begin(), selected.files.end(),
                                           [](const auto& file) { return matches("*.safetensors", file.path); });
  // Whoever names patterns gets what they match.
  if (selection.prefer_safetensors && selection.include.empty() && has_safetensors) {
    const auto other = std::stable_partition(selected.files.begin(), selected.files.end(),
                                             [](const auto& file) { return !matches_any(kOtherWeights, file.path); });
    selected.left_out.assign(other, selected.files.end());
    selected.files.erase(other, selected.files.end());
  }
  if (selection.max_files > 0 && selected.files.size() > static_cast<std::size_t>(selection.max_files)) {
    selected.files.resize(static_cast<std::size_t>(selection.max_files));
  }
  if (selected.files.empty()) {
    throw UsageError("none of the repository's " + std::to_string(all.size()) + " files is selected (" +
                     selection.words() + ")");
  }
  return selected;
}

Preset preset_of(const std::string& repo_name) {
  if (repo_name == "laion/strategic_game_chess") return {RepoType::dataset, {"*.parquet"}};
  if (::fnmatch("codellama/CodeLlama-*-hf", repo_name.c_str(), FNM_NOESCAPE) == 0) {
    return {RepoType::model,
            {"*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json",
             "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"}};
  }
  return {};
}

}  // namespace fsdp
