#pragma once
// The results of an evaluation in lm-eval's form, and as a table.
//
// Source: lm_eval/evaluator_utils.py, loggers/evaluation_tracker.py and utils.py (make_table) of 0.4.13.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/benchmarks/results/task_metrics.hpp"
#include "lib/benchmarks/tasks/task_catalog.hpp"
#include "lib/benchmarks/tasks/task_questions.hpp"

namespace fsdp {

/// A task with what the model answered: by question and request.
struct AnsweredTask {
  const Task* task;
  const TaskQuestions* asked;
  std::vector<std::vector<TaskAnswer>> answers;
};

/// A metric of a task under a filter: "acc,none".
struct TaskScore {
  std::string metric, filter;
  bool higher_is_better = true;
  TaskFigure figure;
  std::vector<double> by_question;  ///< of means, for comparisons; else empty
};

struct TaskScores {
  std::string name, alias;
  bool is_group = false;
  std::vector<TaskScore> scores;
};

class TaskResults {
 public:
  /// \param tasks       what they point to must outlive this object
  /// \param bootstraps  for errors of figures that are no means; 0: none of these
  /// \throws FormatError for patterns that are none
  TaskResults(std::vector<AnsweredTask> tasks, std::vector<TaskGroup> groups, std::int64_t bootstraps);

  /// By task, then by group.
  const std::vector<TaskScores>& scores() const { return scores_; }
  /// The figures of the task or group are a part of those of a group.
  bool is_in_figure_of_group(const std::string& name) const;
  /// {"results": ..., "groups": ..., "group_subtasks": ..., "configs": ..., "versions": ..., "n-shot": ...,
  /// "higher_is_better": ..., "n-samples": ...}
  nlohmann::ordered_json to_json() const;
  /// A table of Markdown, which is readable as it is.
  std::vector<std::string> table() const;
  /// Writes a line of JSON per question and filter, as --log_samples does: `line` ends with a line end.
  void write_samples(const std::function<void(const std::string& line)>& write) const;

 private:
  void add_group(const TaskGroup& group);
  /// The group, or one in it, has the task or group.
  bool holds(const TaskGroup& group, const std::string& name) const;
  std::vector<std::string> leaves_of(const std::string& name) const;
  const TaskScores& scores_of(const std::string& name) const;
  const TaskGroup* find_group(const std::string& name) const;
  nlohmann::ordered_json versions() const;
  nlohmann::ordered_json shots() const;

  std::vector<AnsweredTask> tasks_;
  std::vector<TaskGroup> groups_;
  std::vector<TaskJudge> judges_;                                 ///< by task
  std::vector<std::vector<std::vector<QuestionResult>>> judged_;  ///< by task, filter and question
  std::vector<TaskScores> scores_;
};

}  // namespace fsdp
