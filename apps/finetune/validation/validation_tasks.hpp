#pragma once
// --val-tasks asks benchmarks at validations, with the figures of fsdp-eval --tasks.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

/// A figure of a task or a group.
struct TaskFigureLine {
  std::string task;  ///< its name
  std::string name;  ///< task_metric_name()
  double value = 0;
  std::optional<double> error;  ///< standard error
  bool higher_is_better = true;
  bool is_in_group = false;  ///< a figure of a group stands for it
  std::int64_t count = 0;    ///< questions
};

struct TaskEvaluation {
  std::vector<TaskFigureLine> figures;
  double seconds = 0;
};

/// True for TASK.METRIC.
bool is_task_metric(const std::string& name);

/// \throws UsageError
void check_task_options(const TrainOptions& options);

/// Reads the tasks and makes their questions ids, so that no later step can fail on them; sets setup.tasks, and whether
/// the metric that decides is to rise. Collective. \pre tokenizer and metric are chosen
/// \throws on every rank UsageError; what TaskSet and AskedTasks throw
void load_validation_tasks(ProcessGroup& world, RunSetup& setup, const Logger& log);

/// The same result on every rank; nothing when stopped. Collective. \pre setup.tasks
/// \param stopped  called before each forward pass, returns the same on every rank; may be empty
std::optional<TaskEvaluation> ask_tasks(ModelRuntime& runtime, const RunSetup& setup,
                                        const std::function<bool()>& stopped);

/// The figure of that name; null where there is none.
const TaskFigureLine* find_figure(const TaskEvaluation& tasks, const std::string& name);

/// Lines for the log: one for each task or group for which no other group stands.
/// \param deciding  name of the figure that has a line in any case \param verdict  end of that line
std::vector<std::string> task_lines(std::int64_t step, const TaskEvaluation& tasks, const std::string& deciding,
                                    const std::string& verdict);
/// Makes a record for metrics.jsonl.
nlohmann::json tasks_record(std::int64_t step, const TaskEvaluation& tasks);
/// Adds the objects kTasksKey and kSubtasksKey.
void add_figures(const TaskEvaluation& tasks, nlohmann::json& to);

}  // namespace fsdp::detail
