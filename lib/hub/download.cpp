#include "lib/hub/download.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/hub/file_download.hpp"
#include "lib/hub/free_space.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_client.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void check_revision(const std::string& revision) {
  const fs::path path(revision);
  const bool climbs =
      std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".." || part == "."; });
  const bool odd = std::any_of(revision.begin(), revision.end(), [](unsigned char c) { return c <= 32 || c == 127; });
  if (revision.empty() || path.is_absolute() || !path.has_filename() || climbs || odd) {
    throw UsageError("revision \"" + revision + "\": not a branch, tag or commit", Remedy::of_revision);
  }
}

bool has_size(const fs::path& path, std::uint64_t size_bytes) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == size_bytes && !error;
}

struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
  bool complete = true;  ///< `files` lists the whole repository; otherwise only the files that are present
};

Listing list_offline(const DownloadOptions& options, const SnapshotStore& store) {
  const auto commit = store.read_ref(options.revision);
  if (commit) {
    if (auto tree = store.read_tree(*commit)) return {*commit, std::move(*tree)};
    // A cache made by huggingface_hub holds no listing, so the files that are present are the ones to use.
    store.refuse_links(store.snapshot(*commit));
    auto files = options.local_dir ? std::vector<RemoteFile>{} : linked_files(store.snapshot(*commit), true);
    if (!files.empty()) return {*commit, std::move(files), false};
  }
  throw MissingInput(options.repo.name + " at revision \"" + options.revision + "\" is not in " +
                     store.root().string() + ", and HF_HUB_OFFLINE forbids to fetch it; run fsdp-download " +
                     options.repo.name + " on a machine with network first");
}

Listing list_online(const DownloadOptions& options, const HubSettings& settings, const SnapshotStore& store,
                    const Logger& log, const std::function<bool()>& stop) {
  HubClient hub(settings, options.retries, stop);
  auto commit = options.revision;
  std::vector<std::string> described;
  if (!is_commit_id(commit)) {
    auto resolved = hub.resolve_revision(options.repo, options.revision);
    commit = resolved.commit;
    described = std::move(resolved.files);
    if (resolved.name != options.repo.name) log.info(options.repo.name + " is now called " + resolved.name);
  }
  // A commit is immutable, so a stored listing is still valid.
  if (auto tree = store.read_tree(commit)) return {commit, std::move(*tree)};
  auto files = hub.list_files(options.repo, commit);
  check_listing(options.repo.name, files, described);
  return {commit, std::move(files)};
}

/// Groups files of identical content; groups and files stay in path order.
std::vector<std::vector<RemoteFile>> by_content(const std::vector<RemoteFile>& files) {
  std::vector<std::vector<RemoteFile>> groups;
  std::map<std::string, std::size_t> index;
  for (const auto& file : files) {
    const auto [found, added] = index.emplace(file.hash(), groups.size());
    if (added) groups.emplace_back();
    auto& group = groups[found->second];
    if (!group.empty() && group.front().size_bytes != file.size_bytes) {
      throw FormatError("the hub lists " + group.front().path + " and " + file.path + " with one hash and two sizes");
    }
    group.push_back(file);
  }
  return groups;
}

struct Plan {
  DownloadReport report;
  std::vector<RemoteFile> tree;
  std::vector<std::vector<RemoteFile>> groups;
};

void find_missing(Plan& plan, const SnapshotStore& store, bool offline) {
  store.refuse_links(store.snapshot(plan.report.commit));
  for (const auto& group : plan.groups) {
    const auto size = group.front().size_bytes;
    store.refuse_links(store.work_directory(group.front()));
    plan.report.total_bytes += size;
    const bool content =
        std::any_of(group.begin(), group.end(), [&](const auto& file) { return has_size(store.content(file), size); });
    if (!content) {
      const auto partial = estimate_partial_bytes(store.work_directory(group.front()), group.front().hash(), size);
      plan.report.missing_bytes += size - std::min(size, partial);
    }
    for (const auto& file : group) {
      store.refuse_links((store.snapshot(plan.report.commit) / file.path).parent_path());
      const bool there = has_size(store.snapshot(plan.report.commit) / file.path, size);
      if (!there && (offline || !content)) plan.report.missing.push_back(file.path);
    }
  }
}

/// Counterpart of find_missing() for an incomplete listing, in which a link may be dangling.
void find_dangling(DownloadReport& report) {
  for (const auto& file : report.files) {
    std::error_code error;
    report.total_bytes += file.size_bytes;
    if (!fs::exists(report.snapshot / file.path, error)) report.missing.push_back(file.path);
  }
}

Plan make_plan(const DownloadOptions& options, const HubSettings& settings, const SnapshotStore& store,
               const Logger& log, const std::function<bool()>& stop) {
  check_revision(options.revision);
  auto listing = settings.offline ? list_offline(options, store) : list_online(options, settings, store, log, stop);
  auto selected = select_files(listing.files, options.selection);
  if (!selected.left_out.empty()) {
    std::uint64_t bytes = 0;
    for (const auto& file : selected.left_out) bytes += file.size_bytes;
    log.info("leaving out " + std::to_string(selected.left_out.size()) + " files (" +
                 format_bytes(static_cast<double>(bytes)) + ") with weights in other formats than safetensors",
             Remedy::all_formats);
  }
  Plan plan;
  plan.report.commit = listing.commit;
  plan.report.snapshot = store.snapshot(listing.commit);
  plan.report.ready_mark = store.ready_mark(listing.commit);
  plan.report.files = std::move(selected.files);
  std::set<std::string_view> chosen;
  for (const auto& file : plan.report.files) chosen.insert(file.path);
  for (const auto& file : listing.files)
    if (!chosen.contains(file.path)) plan.report.ignored.push_back(file.path);
  if (!listing.complete) {
    find_dangling(plan.report);
    return plan;
  }
  plan.tree = std::move(listing.files);
  plan.groups = by_content(plan.report.files);
  find_missing(plan, store, settings.offline);
  return plan;
}

void show_progress(DownloadContext& context, const DownloadQueue& queue, const Plan& plan,
                   const std::function<bool()>& working) {
  constexpr double kSecondsBetweenLines = 10;
  Progress display(context.log, true, kSecondsBetweenLines);
  TransferRate rate(plan.report.total_bytes);
  while (working()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rate.sample(Clock::now(), context.received_bytes);
    display.show([&] {
      return std::to_string(queue.files_done()) + " of " + std::to_string(plan.groups.size()) + " files, " +
             rate.line(context.present_bytes);
    });
  }
}

/// \return bytes received
std::uint64_t transfer(const Plan& plan, const DownloadOptions& options, const HubSettings& settings,
                       const SnapshotStore& store, const Logger& log, const std::function<bool()>& stop) {
  std::atomic<bool> failed{false};
  Heartbeat heartbeat(options.takeover_after / 6);
  DownloadContext context{
      options, settings, store, plan.report.commit, log, [&] { return failed || (stop && stop()); }, heartbeat};
  std::vector<std::unique_ptr<FileDownload>> files;
  for (const auto& group : plan.groups) files.push_back(std::make_unique<FileDownload>(context, group));
  const auto poll = std::min<std::chrono::milliseconds>(std::chrono::seconds(1), options.takeover_after / 4);
  DownloadQueue queue(std::move(files), context.stop, failed, poll);
  std::atomic<int> working{options.jobs};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < options.jobs; ++i) {
      const auto work = [&] {
        HubClient hub(settings, options.retries, context.stop);
        queue.work(hub, log);
        --working;
      };
      try {
        start_thread("downloads", [&] { return threads.emplace_back(work).get_id(); });
      } catch (const RuntimeFailure&) {
        failed = true;  // ends the others
        throw;
      }
    }
    show_progress(context, queue, plan, [&] { return working > 0; });
  }
  if (stop && stop()) throw DownloadStopped();
  queue.rethrow_failure();
  return context.received_bytes;
}

void remove_mark(const fs::path& mark) {
  std::error_code error;
  fs::remove(mark, error);
}

void record(const Plan& plan, const DownloadOptions& options, const HubSettings& settings, const SnapshotStore& store) {
  const auto& commit = plan.report.commit;
  const auto path = store.manifest(commit);
  store.refuse_links(path.parent_path());
  store.refuse_links(plan.report.ready_mark.parent_path());
  SnapshotManifest manifest;
  if (auto old = read_manifest(path)) manifest = std::move(*old);
  manifest.repo = options.repo;
  manifest.revision = options.revision;
  manifest.commit = commit;
  manifest.endpoint = loggable_url(settings.endpoint);
  manifest.selection = options.selection.words();
  manifest.add(plan.report.files);
  store.write_ref(options.revision, commit);
  // The content is already synced to disk. Sync the directory entries too, so that the ready mark still holds after a
  // power failure.
  std::set<fs::path> folders;
  for (const auto& file : plan.report.files) folders.insert((plan.report.snapshot / file.path).parent_path());
  for (const auto& folder : folders) sync_name_of(folder / "any");
  try {
    write_manifest(path, manifest);
    publish_text(plan.report.ready_mark, plan.report.snapshot.string() + "\n");
  } catch (const IoError&) {
    // A read-only cache that already holds every file needs no manifest and no mark.
    if (!plan.report.missing.empty()) throw;
  }
}

}  // namespace

SnapshotStore store_of(const DownloadOptions& options, const HubSettings& settings) {
  return options.local_dir ? SnapshotStore::in_folder(*options.local_dir)
                           : SnapshotStore::in_cache(settings.cache_dir, options.repo, settings.symlinks);
}

DownloadReport plan_download(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                             const std::function<bool()>& stop) {
  return make_plan(options, settings, store_of(options, settings), log, stop).report;
}

DownloadReport download_snapshot(const DownloadOptions& options, const HubSettings& settings, const Logger& log,
                                 const std::function<bool()>& stop) {
  const auto begin = Clock::now();
  const auto store = store_of(options, settings);
  auto plan = make_plan(options, settings, store, log, stop);
  auto& report = plan.report;
  if (settings.offline) {
    if (report.missing.empty()) return report;
    throw MissingInput(report.snapshot.string() + ": " + std::to_string(report.missing.size()) + " of " +
                       std::to_string(report.files.size()) + " files are not there (" + report.missing.front() +
                       (report.missing.size() > 1 ? ", ..." : "") + "), and HF_HUB_OFFLINE forbids to fetch them");
  }
  if (!report.missing.empty()) {
    remove_mark(report.ready_mark);
    require_free_space(store.root(), report.missing_bytes, 8 * plan.groups.size() + 16);
    store.tag_cache();
    log.info(options.repo.name + " at " + report.commit.substr(0, 12) + ": fetching " +
             std::to_string(report.missing.size()) + " of " + std::to_string(report.files.size()) + " files, " +
             format_bytes(static_cast<double>(report.missing_bytes)));
  }
  if (!store.read_tree(report.commit)) store.write_tree(report.commit, plan.tree);
  report.received_bytes = transfer(plan, options, settings, store, log, stop);
  record(plan, options, settings, store);
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace fsdp
