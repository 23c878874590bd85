#include "apps/download/fsdp_download_tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lib/base/text/text_format.hpp"
#include "lib/benchmarks/tasks/task_catalog.hpp"
#include "lib/benchmarks/tasks/task_rows.hpp"

namespace fsdp {
namespace {

/// The patterns of the files that tasks read, by repository.
std::map<std::string, std::vector<std::string>> needed_files(const std::vector<Task>& tasks) {
  std::map<std::string, std::vector<std::string>> needed;
  for (const auto& task : tasks) {
    std::error_code error;
    const auto& path = task.data.path;
    if (path == "json" || path == "parquet" || std::filesystem::exists(path, error)) continue;
    auto& patterns = needed[path];
    const auto add = [&](const std::string& pattern) {
      if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
    };
    // Examples may be asked for later, by --num-fewshot.
    for (const auto& split : splits_of(task, /*shots=*/true)) add(parquet_pattern(task, split));
  }
  return needed;
}

}  // namespace

ExitCode download_tasks(const TasksDownload& wanted, const DownloadOptions& how, const HubSettings& settings,
                        const Logger& log, const std::function<bool()>& stop, nlohmann::json& report) {
  TaskCatalog catalog;
  for (const auto& folder : wanted.include_paths) catalog.add_folder(folder);
  const auto needed = needed_files(catalog.select(wanted.names).tasks);
  if (needed.empty()) log.info("the tasks need nothing from the hub");
  std::vector<DownloadOptions> downloads;
  for (const auto& [repo, patterns] : needed) {
    auto& one = downloads.emplace_back(how);
    one.repo = RepoId::parse(RepoType::dataset, repo);
    one.revision = kParquetRevision;
    one.selection.include = patterns;
  }
  report["data_sets"] = nlohmann::json::array();
  if (wanted.verify) {
    std::size_t wrong = 0;
    for (const auto& one : downloads) {
      const auto result = verify_snapshot(one, settings, stop);
      for (const auto& problem : result.problems) log.error(one.repo.name + ": " + problem.path + " " + problem.what);
      wrong += result.problems.size();
      report["data_sets"].push_back(
          {{"repo", one.repo.name}, {"files", result.files}, {"problems", result.problems.size()}});
    }
    if (wrong == 0)
      log.info(fmt::format("{}, all as they should be", format_count_of(std::ssize(downloads), "data set")));
    return wrong == 0 ? ExitCode::ok : ExitCode::answer_no;
  }
  std::uint64_t missing = 0, total = 0;
  for (const auto& one : downloads) {
    const auto plan = plan_download(one, settings, log, stop);
    missing += plan.missing_bytes;
    total += plan.total_bytes;
    log.info(fmt::format(
        "{:<36} {:>9}   {}", one.repo.name, format_bytes(static_cast<double>(plan.total_bytes)),
        plan.missing_bytes == 0 ? "there" : format_bytes(static_cast<double>(plan.missing_bytes)) + " to fetch"));
    report["data_sets"].push_back({{"repo", one.repo.name},
                                   {"files", plan.files.size()},
                                   {"bytes", plan.total_bytes},
                                   {"bytes_to_fetch", plan.missing_bytes}});
  }
  log.info(fmt::format("{}, {}; {} to fetch", format_count_of(std::ssize(downloads), "data set"),
                       format_bytes(static_cast<double>(total)), format_bytes(static_cast<double>(missing))));
  if (wanted.dry_run) return ExitCode::ok;
  for (const auto& one : downloads) download_snapshot(one, settings, log, stop);
  log.info("all there and verified: fsdp-eval --tasks needs no network now");
  return ExitCode::ok;
}

}  // namespace fsdp
