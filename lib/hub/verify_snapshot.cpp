
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/hub/download.hpp"
#include "lib/hub/hub_client.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {
namespace {

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
    for (int i = 0; i < jobs; ++i) {
      threads.emplace_back([&] {
        try {
          for (auto at = next++; at < count; at = next++) use(at);
        } catch (...) {
          next = count;
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
    }
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

VerifyReport verify_snapshot(const DownloadOptions& options, const HubSettings& settings,
                             const std::function<bool()>& stop) {
  const auto begin = std::chrono::steady_clock::now();
  const auto store = store_of(options, settings);
  VerifyReport report;
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
