#include "lib/hub/snapshot_store.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/hub/download.hpp"
#include "lib/hub/hub_client.hpp"
#include "lib/hub/nearby_paths.hpp"

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
  } catch (const UsageError& problem) {  // an invalid repository name in the file is damage, not wrong usage
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

namespace {

namespace fs = std::filesystem;

/// Size and modification time of a file, as stored in a verified record.
std::string state_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return fmt::format("{} {}.{:09}\n", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

/// \return nullopt when `path` is not a readable regular file of at most `limit_bytes`
std::optional<std::string> text_of(const fs::path& path, std::uint64_t limit_bytes) {
  try {
    return read_text(File::open_read_nofollow(path), limit_bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

void copy_as_new(const fs::path& source, const fs::path& target) {
  const auto temporary = target.parent_path() / (".tmp." + unique_name());
  std::error_code error;
  fs::copy_file(source, temporary, error);
  if (!error)
    File::open_read_nofollow(temporary).sync();  // after a power failure, a name must not exist without its bytes
  if (!error) fs::rename(temporary, target, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw IoError(target.string() + ": cannot copy from " + source.string() + ": " + error.message());
}

/// Replaces `link` by a symbolic or hard link to `target`. \return false when the file system does not support such
/// links
bool link_over(const fs::path& target, const fs::path& link, bool symbolic) {
  const auto temporary = link.parent_path() / (".tmp." + unique_name());
  std::error_code error;
  if (symbolic) {
    fs::create_symlink(target, temporary, error);
  } else {
    fs::create_hard_link(target, temporary, error);
  }
  if (error == std::errc::operation_not_permitted || error == std::errc::operation_not_supported ||
      error == std::errc::function_not_supported || error == std::errc::cross_device_link) {
    return false;
  }
  if (!error) fs::rename(temporary, link, error);
  std::error_code ignored;
  fs::remove(temporary, ignored);  // rename(2) does nothing when both names are links to one file
  if (error) throw IoError(link.string() + ": cannot link to " + target.string() + ": " + error.message());
  return true;
}

struct Wanted {
  RepoId repo;
  std::string revision = "main";
};

/// \return nullopt when `name` can only be a path
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

std::string download_command(const Wanted& wanted, const std::string& selection) {
  return fmt::format("; on a machine with network run: fsdp-download {}{}{}{}", wanted.repo.name,
                     wanted.repo.type == RepoType::dataset ? " --type dataset" : "",
                     wanted.revision == "main" ? "" : " --revision " + wanted.revision, selection);
}

namespace fs = std::filesystem;

struct Expected {
  std::vector<RemoteFile> files;
  std::string source;
};

Expected expected_files(const DownloadOptions& options, const SnapshotStore& store, const std::string& commit) {
  const auto& wanted = options.selection;
  if (const auto manifest = read_manifest(store.manifest(commit))) {
    // Without patterns, this selects every file that was ever downloaded for this commit.
    Selection all = wanted;
    all.prefer_safetensors = false;
    return {select_files(manifest->files, all).files, "manifest"};
  }
  if (const auto tree = store.read_tree(commit)) return {select_files(*tree, wanted).files, "listing"};
  auto files = linked_files(store.snapshot(commit), false);
  if (files.empty()) throw MissingInput(store.snapshot(commit).string() + ": holds nothing that could be verified");
  return {std::move(files), "blob names"};
}

/// Describes what is wrong with a file; "" when it is valid.
std::string problem_of(const fs::path& path, const RemoteFile& file, const std::function<bool()>& stop) {
  std::error_code error;
  if (!fs::exists(path, error)) return "is missing";
  const auto size = fs::file_size(path, error);
  if (error) return "cannot be read: " + error.message();
  if (size != file.size_bytes) {
    return "has " + std::to_string(size) + " bytes instead of " + std::to_string(file.size_bytes);
  }
  const auto hash = hash_file(path, hash_kind(file.hash()), stop);
  if (hash.empty()) throw DownloadStopped();
  return hash == file.hash() ? "" : "has the hash " + hash + " instead of " + file.hash();
}

/// Calls `use` for 0 ... count - 1 in any order on `jobs` threads. Rethrows the first exception.
void in_parallel(std::size_t count, int jobs, const std::function<void(std::size_t)>& use) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    const auto guarded = [&](const auto& work) {
      try {
        work();
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    };
    const auto work = [&] {
      guarded([&] {
        for (auto at = next++; at < count; at = next++) use(at);
      });
    };
    guarded([&] {
      start_thread("checks files", [&] {
        for (int i = 0; i < jobs; ++i) threads.emplace_back(work);
      });
    });
  }
  if (failure) std::rethrow_exception(failure);
}

std::string commit_of(const DownloadOptions& options, const SnapshotStore& store) {
  const auto commit = store.read_ref(options.revision);
  std::error_code error;
  if (!commit || !fs::is_directory(store.snapshot(*commit), error)) {
    throw MissingInput(options.repo.name + " at revision \"" + options.revision + "\" is not in " +
                       store.root().string() + ": nothing to verify; download it first");
  }
  return *commit;
}

}  // namespace

SnapshotStore SnapshotStore::in_cache(const fs::path& cache_dir, const RepoId& repo, bool symlinks) {
  if (cache_dir.empty()) {
    throw UsageError(
        "no place for the Hugging Face cache: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are not set; set one of "
        "them",
        Remedy::name_cache);
  }
  SnapshotStore store;
  store.symlinks_ = symlinks;
  store.base_ = fs::absolute(cache_dir).lexically_normal();
  store.root_ = store.base_ / repo.folder();
  store.own_ = store.root_ / ".fsdp";
  return store;
}

SnapshotStore SnapshotStore::in_folder(const fs::path& local_dir) {
  SnapshotStore store;
  store.local_ = true;
  store.base_ = fs::absolute(local_dir).lexically_normal();
  if (!store.base_.has_filename()) store.base_ = store.base_.parent_path();
  store.root_ = store.base_ / ".cache" / "huggingface";
  store.own_ = store.root_ / ".fsdp";
  return store;
}

fs::path SnapshotStore::snapshot(const std::string& commit) const {
  return local_ ? base_ : root_ / "snapshots" / commit;
}

fs::path SnapshotStore::content(const RemoteFile& file) const {
  return local_ ? base_ / file.path : root_ / "blobs" / file.hash();
}

fs::path SnapshotStore::work_directory(const RemoteFile& file) const { return own_ / "partial" / file.hash(); }

fs::path SnapshotStore::verified_record(const RemoteFile& file) const {
  // The suffix keeps files apart from folders, because a file and a folder may share a name in different commits.
  return own_ / "verified" / (local_ ? file.path + ".verified" : file.hash());
}

void SnapshotStore::refuse_links(const fs::path& folder) const {
  auto strict = root_ / "snapshots";
  if (is_below(folder, own_)) strict = root_;
  const bool ours_only = is_below(folder, own_) || (!local_ && is_below(folder, strict));
  refuse_planted_links(base_, ours_only ? strict : folder, true);
  if (ours_only) refuse_planted_links(strict, folder, false);
}

/// Writes a file that only speeds up later runs; I/O errors are ignored.
void SnapshotStore::publish_if_possible(const fs::path& path, const std::string& text) const {
  refuse_links(path.parent_path());
  try {
    publish_text(path, text);
  } catch (const IoError&) {
  }
}

bool SnapshotStore::is_verified(const RemoteFile& file) const {
  const auto state = state_of(content(file));
  const auto record = text_of(verified_record(file), 4096);
  return !state.empty() && record == file.hash() + " " + state;
}

void SnapshotStore::set_verified(const RemoteFile& file) const {
  const auto text = file.hash() + " " + state_of(content(file));
  if (text_of(verified_record(file), 4096) != text) publish_if_possible(verified_record(file), text);
}

void SnapshotStore::forget_verified(const RemoteFile& file) const {
  std::error_code ignored;
  fs::remove(verified_record(file), ignored);
}

void SnapshotStore::publish(const fs::path& data, const RemoteFile& file) const {
  const auto target = content(file);
  refuse_links(target.parent_path());
  make_directories(target.parent_path());
  if (::rename(data.c_str(), target.c_str()) != 0) {
    throw IoError(target.string() + ": cannot move the finished download here: " + std::strerror(errno));
  }
  sync_directory(target.parent_path());
}

void SnapshotStore::add_to_snapshot(const std::string& commit, const RemoteFile& file, const fs::path& source) const {
  const auto place = snapshot(commit) / file.path;
  refuse_links(place.parent_path());
  if (local_) {
    make_directories(place.parent_path());
    if (source != place) copy_as_new(source, place);
    const auto seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    publish_if_possible(root_ / "download" / (file.path + ".metadata"),
                        fmt::format("{}\n{}\n{:.6f}\n", commit, file.hash(), seconds));
    return;
  }
  std::error_code error;
  const bool same = fs::equivalent(place, source, error);
  if (same && !error) return;
  make_directories(place.parent_path());
  const auto relative = source.lexically_relative(place.parent_path());
  if (symlinks_ && link_over(relative, place, true)) return;
  if (!link_over(source, place, false)) copy_as_new(source, place);
}

std::optional<std::string> SnapshotStore::read_ref(const std::string& revision) const {
  if (is_commit_id(revision)) return revision;
  const auto text = text_of((local_ ? own_ : root_) / "refs" / revision, 4096);
  return text && is_commit_id(*text) ? text : std::nullopt;
}

void SnapshotStore::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit || read_ref(revision) == commit) return;
  publish_if_possible((local_ ? own_ : root_) / "refs" / revision, commit);
}

std::optional<std::vector<RemoteFile>> SnapshotStore::read_tree(const std::string& commit) const {
  const auto text = text_of(root_ / "trees" / (commit + ".json"), 1u << 30);
  return text ? tree_from_json(*text) : std::nullopt;
}

void SnapshotStore::write_tree(const std::string& commit, const std::vector<RemoteFile>& files) const {
  publish_if_possible(root_ / "trees" / (commit + ".json"), tree_to_json(files));
}

void SnapshotStore::tag_cache() const {
  const auto tag = (local_ ? root_ : base_) / "CACHEDIR.TAG";
  std::error_code error;
  if (fs::exists(tag, error)) return;
  publish_if_possible(tag,
                      "Signature: 8a477f597d28d172789f06886806bc55\n"
                      "# This file is a cache directory tag created by fsdp-download.\n"
                      "# For information about cache directory tags, see:\n"
                      "#\thttps://bford.info/cachedir/\n");
  if (local_) publish_if_possible(root_ / ".gitignore", "*");
}

namespace fs = std::filesystem;

std::vector<RemoteFile> linked_files(const fs::path& snapshot, bool plain_files) {
  std::vector<RemoteFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    RemoteFile file{entry->path().lexically_relative(snapshot).generic_string(), 0, "", std::nullopt, std::nullopt};
    if (entry->is_symlink(ignored)) {
      file.blob_id = fs::read_symlink(entry->path(), ignored).filename().string();
    } else if (!plain_files || !entry->is_regular_file(ignored)) {
      continue;
    }
    const auto size = fs::file_size(entry->path(), ignored);
    if (!ignored) file.size_bytes = size;
    if (file.blob_id.size() == 64) file.lfs_sha256 = file.blob_id;
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

std::filesystem::path find_snapshot(const std::string& name, RepoType type, const HubSettings& settings,
                                    const std::string& selection) {
  std::error_code error;
  if (std::filesystem::exists(name, error)) return name;
  if (error == std::errc::permission_denied) throw IoError(name + ": cannot be read: " + error.message());
  const auto wanted = parse_name(name, type);
  if (!wanted || is_among_runs(name)) throw MissingInput(name + ": No such file or directory" + nearby_words(name));
  const auto store = SnapshotStore::in_cache(settings.cache_dir, wanted->repo, settings.symlinks);
  const auto commit = store.read_ref(wanted->revision).value_or(wanted->revision);  // the revision may be a commit
  const auto directory = store.snapshot(commit);
  const bool is_name = commit.find('/') == std::string::npos && !commit.starts_with('.') && !commit.empty();
  if (is_name && std::filesystem::is_directory(directory, error)) {
    store.refuse_links(directory);
    return directory;
  }
  throw MissingInput(
      fmt::format("{}: No such file or directory, and the Hugging Face cache {} has no {} of that name{}{}", name,
                  settings.cache_dir.string(), wanted->repo.type_word(),
                  wanted->revision == "main" ? "" : " at revision " + wanted->revision,
                  nearby_words(name) + download_command(*wanted, selection)));
}

void refuse_config_alone(const std::string& name, const std::filesystem::path& found) {
  const auto wanted = name == found ? std::nullopt : parse_name(name, RepoType::model);
  std::error_code error;
  const auto files = std::distance(std::filesystem::directory_iterator(found, error), {});
  if (!wanted || files != 1 || !std::filesystem::exists(found / "config.json", error)) return;
  throw MissingInput(fmt::format("{}: the Hugging Face cache has its config.json alone, no weights and no tokenizer{}",
                                 name, download_command(*wanted, "")));
}

SnapshotReport verify_snapshot(const DownloadOptions& options, const HubSettings& settings,
                               const std::function<bool()>& stop) {
  const auto begin = std::chrono::steady_clock::now();
  const auto store = store_of(options, settings);
  SnapshotReport report;
  report.commit = commit_of(options, store);
  report.snapshot = store.snapshot(report.commit);
  store.refuse_links(report.snapshot);
  const auto expected = expected_files(options, store, report.commit);
  report.source = expected.source;
  report.files = expected.files.size();
  std::mutex mutex;
  in_parallel(expected.files.size(), options.jobs, [&](std::size_t i) {
    const auto& file = expected.files[i];
    store.refuse_links((report.snapshot / file.path).parent_path());
    const auto problem = problem_of(report.snapshot / file.path, file, stop);
    std::error_code error;
    if (problem.empty()) {
      if (fs::equivalent(report.snapshot / file.path, store.content(file), error)) store.set_verified(file);
    } else {
      store.forget_verified(file);
    }
    const std::lock_guard lock(mutex);
    report.bytes += file.size_bytes;
    if (!problem.empty()) report.problems.push_back({file.path, problem});
  });
  std::sort(report.problems.begin(), report.problems.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  std::error_code ignored;
  if (!report.problems.empty()) fs::remove(store.ready_mark(report.commit), ignored);
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace fsdp
