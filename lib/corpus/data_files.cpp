#include "lib/corpus/data_files.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

using Paths = std::vector<std::filesystem::path>;

struct Kind {
  const char* name;
  std::array<std::string_view, 2> suffixes;
};
constexpr std::array<Kind, 5> kKinds{{{"Parquet", {".parquet", ".parquet"}},
                                      {"JSON Lines", {".jsonl", ".ndjson"}},
                                      {"CSV", {".csv", ".tsv"}},
                                      {"JSON", {".json", ".json"}},
                                      {"text", {".txt", ".txt"}}}};
constexpr std::size_t kChosenKinds = 3;  ///< of which a directory may have one; the others count in their absence

std::array<Paths, kKinds.size()> files_by_kind(const std::filesystem::path& directory) {
  std::array<Paths, kKinds.size()> found;
  using Walk = std::filesystem::recursive_directory_iterator;
  for (auto entry = Walk(directory, std::filesystem::directory_options::follow_directory_symlink); entry != Walk();
       ++entry) {
    const auto& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file()) continue;
    const auto suffix = path.extension().string();
    for (std::size_t k = 0; k < kKinds.size(); ++k) {
      const auto& suffixes = kKinds[k].suffixes;
      if (std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end()) found[k].push_back(path);
    }
  }
  return found;
}

Paths files_in(const std::filesystem::path& directory) {
  auto found = files_by_kind(directory);
  std::string several;
  const Paths* chosen = nullptr;
  for (std::size_t k = 0; k < found.size(); ++k) {
    std::sort(found[k].begin(), found[k].end());
    if (found[k].empty() || (k >= kChosenKinds && chosen != nullptr)) continue;
    several += (several.empty() ? "" : " and ") + std::to_string(found[k].size()) + " " + kKinds[k].name;
    if (chosen != nullptr) {
      throw UsageError(directory.string() + ": holds " + several +
                       " files, which may be the same data twice; name the files that are meant");
    }
    chosen = &found[k];
  }
  if (chosen == nullptr) {
    throw FormatError(directory.string() +
                      ": holds no data files (.parquet, .jsonl, .ndjson, .csv, .tsv, .json, .txt)");
  }
  return *chosen;
}

}  // namespace

Paths data_files(const Paths& inputs) {
  Paths files;
  for (const auto& input : inputs) {
    std::error_code error;
    const auto status = std::filesystem::status(input, error);
    if (!std::filesystem::exists(status)) {
      throw MissingInput(input.string() + ": " + (error ? error.message() : "No such file or directory"));
    }
    if (!std::filesystem::is_directory(status)) {
      if (!std::filesystem::is_regular_file(status)) {
        throw FormatError(input.string() + ": is a pipe or a device, a regular file is needed");
      }
      files.push_back(input);
      continue;
    }
    try {
      const auto found = files_in(input);
      files.insert(files.end(), found.begin(), found.end());
    } catch (const std::filesystem::filesystem_error& failure) {
      throw IoError(failure.path1().string() + ": cannot look for data files: " + failure.code().message());
    }
  }
  return files;
}

}  // namespace fsdp
