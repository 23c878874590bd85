#include "lib/training/checkpoints/find.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

std::vector<std::filesystem::path> newest_first(const std::filesystem::path& checkpoints) {
  std::vector<std::pair<std::string, std::filesystem::path>> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, error)) {
    auto name = entry.path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(".old")) {
      // A step saved again was killed between its two renames: the first save is whole, under this name.
      name = name.substr(1, name.size() - 5);
      if (std::filesystem::exists(checkpoints / name, error)) continue;
    }
    if (name.starts_with("step-")) all.emplace_back(name, entry.path());
  }
  std::sort(all.rbegin(), all.rend());
  std::vector<std::filesystem::path> paths;
  for (auto& [name, path] : all) paths.push_back(std::move(path));
  return paths;
}

/// RUN/previous-N/checkpoints/latest of the highest N that has one; empty: none
std::filesystem::path newest_previous_run(const std::filesystem::path& run) {
  std::filesystem::path newest;
  std::error_code error;
  for (int number = 1;; ++number) {
    const auto folder = run / fmt::format("previous-{}", number);
    if (!std::filesystem::exists(folder, error)) return newest;
    if (std::filesystem::exists(folder / "checkpoints" / "latest", error)) newest = folder / "checkpoints" / "latest";
  }
}

/// The other runs of the folder that have checkpoints, for a message.
std::string runs_beside(const std::filesystem::path& run) {
  constexpr std::size_t kShown = 20;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run.parent_path(), error)) {
    if (!newest_first(entry.path() / "checkpoints").empty()) names.push_back(entry.path().filename().string());
  }
  const auto out = run.parent_path().string();
  if (names.empty()) return out + " holds no run that has any (--out-dir names the folder of the runs)";
  std::sort(names.begin(), names.end());
  const auto more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : std::string();
  names.resize(std::min(kShown, names.size()));
  return fmt::format("runs in {} that have some: {}{}; --run-name NAME goes on with one of them", out,
                     fmt::join(names, ", "), more);
}

/// The link in a run's folder, or in the folder of its checkpoints; empty where `path` is neither.
std::filesystem::path latest_of_run(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path / "run.json", error)) return {};  // a checkpoint
  if (std::filesystem::is_directory(path / "checkpoints", error)) return path / "checkpoints" / "latest";
  return std::filesystem::is_symlink(path / "latest", error) ? path / "latest" : std::filesystem::path();
}

}  // namespace

std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints) {
  std::error_code error;
  const bool is_word = text == "latest" || (text == "best" && !std::filesystem::exists(text, error));
  std::filesystem::path given = is_word ? checkpoints / text : std::filesystem::path(text);
  if (const auto latest = latest_of_run(given); text != "latest" && !latest.empty()) given = latest;
  const bool is_latest = names_latest(text);
  const auto resolved = std::filesystem::weakly_canonical(given, error);
  std::vector<std::filesystem::path> candidates;
  if (std::filesystem::exists(resolved, error)) candidates.push_back(resolved);
  if (is_latest) {
    for (const auto& other : newest_first(given.parent_path())) {
      const auto path = std::filesystem::weakly_canonical(other, error);
      if (path != resolved) candidates.push_back(path);
    }
  }
  if (candidates.empty() && text == "latest") {
    const auto earlier = newest_previous_run(checkpoints.parent_path());
    if (!earlier.empty()) {
      throw MissingInput(
          fmt::format("{}: no such checkpoint; an earlier run of this name was moved aside: "
                      "--restart-checkpoint-file {} goes on from it",
                      given.string(), earlier.string()));
    }
  }
  const bool is_run = std::filesystem::exists(std::filesystem::path(text) / "metrics.jsonl", error);
  if (is_run && (candidates.empty() || candidates.front() == std::filesystem::weakly_canonical(text, error))) {
    throw MissingInput(text + ": is the folder of a run without checkpoints: it has saved none; start it anew, or " +
                       "give the checkpoint of another one");
  }
  if (candidates.empty() && is_word) {
    throw MissingInput(given.string() + ": no such checkpoint; " + runs_beside(checkpoints.parent_path()));
  }
  if (candidates.empty()) {
    throw MissingInput(given.string() +
                       ": no such checkpoint; give a checkpoint directory, or a .pt or safetensors file");
  }
  return candidates;
}

bool names_latest(const std::string& text) {
  return std::filesystem::path(text).filename() == "latest" || !latest_of_run(text).empty();
}

std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path, bool ours_only) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw MissingInput(path.string() + ": no such checkpoint");
  const bool is_ours = std::filesystem::exists(path / "run.json", error);
  if (ours_only && !is_ours)
    throw FormatError(path.string() + ": holds no run.json, so it is no checkpoint of this program");
  try {
    return std::make_shared<const Checkpoint>(path);
  } catch (const FormatError& problem) {
    if (is_ours || !std::filesystem::is_directory(path, error)) throw;
    const std::string what = problem.what();
    if (what.find("run.json") != std::string::npos) throw;
    throw FormatError(path.string() + ": holds no run.json of this program, and " + what);
  }
}

}  // namespace fsdp
