#include "lib/hub/nearby_paths.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "lib/base/text/nearest_name.hpp"
#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

bool is_run(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "metrics.jsonl", error) ||
         std::filesystem::exists(folder / "job.json", error);
}

std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder) {
  constexpr std::size_t kMost = 10000;
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_directory(error) && found.size() < kMost) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool is_among_runs(const std::filesystem::path& path) {
  return std::ranges::any_of(folders_in(folder_of(path)), is_run);
}

std::string nearby_words(const std::filesystem::path& missing) {
  const auto folder = folder_of(missing);
  const auto wanted = ascii_lower(missing.filename().string());
  NearestName nearest(wanted);
  std::vector<std::string> runs;
  for (const auto& path : folders_in(folder)) {
    const auto name = path.filename().string();
    if (is_run(path)) runs.push_back(printable(name));
    if (!wanted.empty()) nearest.offer(ascii_lower(name), path.string());
  }
  if (!nearest.name().empty()) return fmt::format("; did you mean {}?", printable(nearest.name()));
  constexpr std::size_t kShown = 20;
  if (runs.empty()) return "";
  const auto more = runs.size() > kShown ? fmt::format(" and {} more", runs.size() - kShown) : std::string();
  runs.resize(std::min(kShown, runs.size()));
  return fmt::format("; {} has the runs {}{}", printable(folder.string()), fmt::join(runs, ", "), more);
}

}  // namespace fsdp
