#pragma once
// The benchmarks of a job, with their rows.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/benchmarks/tasks/task_catalog.hpp"
#include "lib/benchmarks/tasks/task_questions.hpp"

namespace fsdp {

struct TaskChoice {
  std::vector<std::string> names;           ///< tasks, groups, tags, files and folders
  std::vector<std::string> include_paths;   ///< folders whose task files may be named
  std::optional<double> limit;              ///< as AskOptions::limit
  std::optional<std::int64_t> num_fewshot;  ///< likewise
  std::int64_t seed = AskOptions().seed;    ///< of the shots
};

/// Each split is read once; data sets of the hub are looked for in its cache.
class TaskSet {
 public:
  /// \throws what TaskCatalog throws
  explicit TaskSet(TaskChoice choice);
  /// Makes the questions, so that what cannot be asked is told before a model is loaded. \throws what read_task_rows()
  /// and ask_task() throw
  void check();

  const TaskSelection& selection() const { return selection_; }
  /// \param how  what is said of the choice is replaced. \throws as ask_task()
  TaskQuestions ask(const Task& task, AskOptions how);
  /// "TASK.METRIC" of each figure that the tasks and groups have, or "TASK.METRIC,FILTER" for another filter than that
  /// which passes all on; and whether higher is better.
  std::vector<std::pair<std::string, bool>> metrics() const;

 private:
  TaskChoice choice_;
  TaskSelection selection_;
  std::map<std::pair<std::string, std::string>, std::vector<nlohmann::ordered_json>> rows_;  ///< by task and split
};

/// "TASK.METRIC" or "TASK.METRIC,FILTER", as TaskSet::metrics() has them.
std::string task_metric_name(const std::string& task, const std::string& metric, const std::string& filter);

}  // namespace fsdp
