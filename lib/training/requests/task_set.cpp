#include "lib/training/requests/task_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/benchmarks/tasks/task_rows.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {
namespace {

/// The hub's own Parquet files, which fsdp-download fetches for tasks, come before others of the repository.
std::filesystem::path find_dataset(const std::string& path) {
  const auto settings = hub_settings(process_environment());
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  try {
    return find_snapshot(fmt::format("{}@{}", path, kParquetRevision), RepoType::dataset, settings);
  } catch (const MissingInput&) {
  }
  try {
    return find_snapshot(path, RepoType::dataset, settings);
  } catch (const MissingInput& missing) {
    throw MissingInput(missing.what(), Remedy::fetch_tasks);
  }
}

}  // namespace

std::string task_metric_name(const std::string& task, const std::string& metric, const std::string& filter) {
  return task + "." + metric + (filter == "none" ? "" : "," + filter);
}

TaskSet::TaskSet(TaskChoice choice) : choice_(std::move(choice)) {
  TaskCatalog catalog;
  for (const auto& folder : choice_.include_paths) catalog.add_folder(folder);
  selection_ = catalog.select(choice_.names);
}

void TaskSet::check() {
  for (const auto& task : selection_.tasks) ask(task, {});
}

TaskQuestions TaskSet::ask(const Task& task, AskOptions how) {
  how.limit = choice_.limit;
  how.num_fewshot = choice_.num_fewshot;
  how.seed = choice_.seed;
  const auto rows_of = [&](const std::string& split) -> const std::vector<nlohmann::ordered_json>& {
    const auto key = std::pair(task.name, split);
    const auto known = rows_.find(key);
    if (known != rows_.end()) return known->second;
    return rows_.emplace(key, read_task_rows(task, split, find_dataset)).first->second;
  };
  return ask_task(task, rows_of, how);
}

std::vector<std::pair<std::string, bool>> TaskSet::metrics() const {
  std::vector<std::pair<std::string, bool>> names;
  const auto add = [&](const std::string& task, const std::string& metric, const std::string& filter, bool higher) {
    const auto name = task_metric_name(task, metric, filter);
    const auto same = [&](const auto& one) { return one.first == name; };
    if (std::ranges::none_of(names, same)) names.emplace_back(name, higher);
  };
  for (const auto& task : selection_.tasks) {
    for (const auto& metric : task.metrics) {
      for (const auto& filter : task.filters) add(task.name, metric.name, filter.name, metric.higher_is_better);
    }
  }
  const auto higher_is_better = [&](const std::string& metric) {
    for (const auto& task : selection_.tasks) {
      for (const auto& one : task.metrics) {
        if (one.name == metric) return one.higher_is_better;
      }
    }
    return true;
  };
  for (const auto& group : selection_.groups) {
    for (const auto& metric : group.metrics) {
      for (const auto& filter : metric.filters.value_or(std::vector<std::string>{"none"}))
        add(group.name, metric.metric, filter, higher_is_better(metric.metric));
    }
  }
  return names;
}

}  // namespace fsdp
