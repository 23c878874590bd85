#pragma once
// How answers are judged: figures of each question, of a task, and of a group of tasks.
//
// Source: lm_eval/api/task.py (process_results), api/metrics.py and api/group.py of 0.4.13.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/benchmarks/tasks/task.hpp"
#include "lib/benchmarks/tasks/task_questions.hpp"

namespace fsdp {

/// The model's answer to a request.
struct TaskAnswer {
  double log_likelihood = 0;  ///< nats; of a page the sum over its windows
  bool is_greedy = false;     ///< each id is the most probable one
  std::string text;           ///< of generation
};

/// A metric of one question: a figure, or what its aggregation needs of several.
struct QuestionMetric {
  std::string name;
  nlohmann::ordered_json logged;  ///< as lm-eval logs it
  double value = 0;   ///< of means: the figure. Of a page: the log-likelihood. Of f1 and mcc: the gold choice
  double weight = 1;  ///< of a page: its words or bytes. Of f1 and mcc: the choice of the model
};

/// The metrics of a question under one filter.
struct QuestionResult {
  nlohmann::ordered_json filtered;  ///< filtered_resps
  std::vector<QuestionMetric> metrics;
};

/// Judges the answers of a task.
class TaskJudge {
 public:
  /// \throws FormatError for patterns that are none
  explicit TaskJudge(const Task& task);
  ~TaskJudge();
  TaskJudge(TaskJudge&&) noexcept;

  std::size_t num_filters() const;
  const std::string& filter_name(std::size_t filter) const;
  /// \param answers  by request of the question
  QuestionResult judge(const TaskQuestion& question, const std::vector<TaskAnswer>& answers, std::size_t filter) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

/// A figure and its standard error; nothing where lm-eval has "N/A".
struct TaskFigure {
  double value = 0;
  std::optional<double> error;
  std::size_t count = 0;  ///< questions
};

/// \param values  of one metric, by question \param iterations  of bootstraps
/// \throws FormatError where f1 has choices beyond two
TaskFigure figure_of(const TaskMetric& metric, const std::vector<QuestionMetric>& values, std::int64_t iterations,
                     const std::string& file);

/// The figure of a group from those of its tasks that have the metric.
TaskFigure figure_of_group(const std::vector<TaskFigure>& tasks, bool weight_by_size);

}  // namespace fsdp
