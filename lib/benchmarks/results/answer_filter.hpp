#pragma once
// From the text that a model wrote to the answer in it.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/benchmarks/tasks/task.hpp"
#include "lib/templates/jinja/python_regex.hpp"

namespace fsdp {

/// A task's filter, with its patterns compiled. Source: lm_eval/filters of 0.4.13.
class AnswerFilter {
 public:
  /// \param file  of the task, for messages. \throws FormatError for what is no pattern
  AnswerFilter(const TaskFilter& filter, const std::string& file);
  const std::string& name() const { return filter_.name; }
  /// The answer: a text, or what a map stands for.
  nlohmann::ordered_json answer(const std::string& text) const;

 private:
  TaskFilter filter_;
  std::vector<PythonRegex> patterns_;  ///< of the steps that have one, in order
};

/// exact_match of generation: what is left of both texts is equal.
class ExactMatch {
 public:
  /// \throws FormatError for what is no pattern
  ExactMatch(const TaskMetric& metric, const std::string& file);
  bool holds(const std::string& answer, const std::string& gold) const;

 private:
  std::string normal(std::string text) const;

  TaskMetric metric_;
  std::vector<PythonRegex> ignored_;
};

}  // namespace fsdp
