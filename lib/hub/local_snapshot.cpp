#include "lib/hub/local_snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {
namespace {

struct Wanted {
  RepoId repo;
  std::string revision = "main";
};

/// Nothing when `name` can only be a path.
std::optional<Wanted> parse_name(const std::string& name, RepoType type) {
  const auto at = name.find('@');
  const auto repo = name.substr(0, at);
  if (std::count(repo.begin(), repo.end(), '/') != 1 || repo.starts_with('.') || repo.starts_with('~')) return {};
  try {
    Wanted wanted{RepoId::parse(type, repo), "main"};
    if (at != std::string::npos) wanted.revision = name.substr(at + 1);
    return wanted;
  } catch (const UsageError&) {
    return {};
  }
}

}  // namespace

std::filesystem::path find_snapshot(const std::string& name, RepoType type, const HubSettings& settings,
                                    const std::string& selection) {
  std::error_code error;
  if (std::filesystem::exists(name, error)) return name;
  const auto wanted = parse_name(name, type);
  if (!wanted) throw MissingInput(name + ": No such file or directory");
  const auto store = SnapshotStore::in_cache(settings.cache_dir, wanted->repo, settings.symlinks);
  const auto commit = store.read_ref(wanted->revision).value_or(wanted->revision);  // a commit may be named itself
  const auto directory = store.snapshot(commit);
  const bool is_name = commit.find('/') == std::string::npos && !commit.starts_with('.') && !commit.empty();
  if (is_name && std::filesystem::is_directory(directory, error)) {
    store.refuse_links(directory);
    return directory;
  }
  throw MissingInput(
      fmt::format("{}: No such file or directory, and the Hugging Face cache {} has no {} of that name{}; on a machine "
                  "with network run: fsdp-download {}{}{}{}",
                  name, settings.cache_dir.string(), wanted->repo.type_word(),
                  wanted->revision == "main" ? "" : " at revision " + wanted->revision, wanted->repo.name,
                  type == RepoType::dataset ? " --type dataset" : "",
                  wanted->revision == "main" ? "" : " --revision " + wanted->revision, selection));
}

}  // namespace fsdp
