#include "lib/hub/manifest.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/shared_write.hpp"

namespace fsdp {

void SnapshotManifest::add(const std::vector<RemoteFile>& more) {
  for (const auto& file : more) {
    const auto same = std::find_if(files.begin(), files.end(), [&](const auto& one) { return one.path == file.path; });
    if (same == files.end()) {
      files.push_back(file);
    } else {
      *same = file;
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
}

std::optional<SnapshotManifest> read_manifest(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error))) return std::nullopt;
  try {
    const auto text = read_text_file(path);
    const auto json = parse_json(text, path.string());
    SnapshotManifest manifest;
    const auto type = json.at("type") == "dataset" ? RepoType::dataset : RepoType::model;
    manifest.repo = RepoId::parse(type, json.at("repo").get<std::string>());
    manifest.revision = json.at("revision").get<std::string>();
    manifest.commit = json.at("commit").get<std::string>();
    manifest.endpoint = json.at("endpoint").get<std::string>();
    manifest.selection = json.at("selection").get<std::string>();
    const auto files = tree_from_json(json_text(json.at("tree")));
    if (!files) throw FormatError(path.string() + ": its list of files is damaged");
    manifest.files = *files;
    return manifest;
  } catch (const nlohmann::json::exception& problem) {
    throw FormatError(path.string() + ": is damaged: " + problem.what() + ". Remove it and download again");
  } catch (const UsageError& problem) {  // the repository's name; nobody typed it
    throw FormatError(path.string() + ": is damaged: " + problem.what() + ". Remove it and download again");
  }
}

void write_manifest(const std::filesystem::path& path, const SnapshotManifest& manifest) {
  const nlohmann::json json{{"program", "fsdp-download " FSDP_VERSION},
                            {"repo", manifest.repo.name},
                            {"type", manifest.repo.type_word()},
                            {"revision", manifest.revision},
                            {"commit", manifest.commit},
                            {"endpoint", manifest.endpoint},
                            {"selection", manifest.selection},
                            {"tree", parse_json(tree_to_json(manifest.files), "a list of files")}};
  publish_text(path, json_text(json, 1));
}

}  // namespace fsdp
