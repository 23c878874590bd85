#pragma once
// Benchmarks: fsdp-eval --tasks.
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/training/evaluate/statistics.hpp"
#include "lib/training/evaluate/subject.hpp"
#include "lib/training/requests/task_set.hpp"

namespace fsdp {

struct TaskOptions {
  TaskChoice choice;
  std::int64_t bootstrap_iters = 100'000;
  bool apply_chat_template = false;
  bool fewshot_as_multiturn = true;
  std::string log_samples;           ///< file; empty: none
  std::vector<std::string> results;  ///< files to show in one table, in place of an evaluation

  bool any() const { return !choice.names.empty(); }
};

/// "NAME  what it is" of each task and group that is known.
std::vector<std::string> list_tasks(const TaskOptions& options);

/// The tasks of an evaluation, which are asked of one model or of two.
class TasksJob {
 public:
  /// Reads the tasks and their rows, on rank 0. Collective. \throws on every rank what TaskSet throws; UsageError for a
  /// gate on a metric that no task has
  TasksJob(ProcessGroup& world, const TaskOptions& options, const std::vector<Gate>& gates);

  struct Run {
    const EvaluationSubject& subject;  ///< with its tokenizer
    const ConversationOptions& conversations;
    const std::optional<std::string>& system;
    std::int64_t batch_size;
    bool alike;  ///< the runtime has RowwiseOps
    bool show_progress;
  };
  /// Asks a model, and adds results in lm-eval's form to `report`, on rank 0. Collective.
  /// \return lines for people, on rank 0, and figures for comparisons
  std::pair<std::vector<std::string>, std::vector<Metric>> evaluate(ModelRuntime& runtime, const Run& run,
                                                                    const Logger& log, nlohmann::json& report);

 private:
  const TaskOptions& options_;
  std::unique_ptr<TaskSet> set_;  ///< on rank 0
};

}  // namespace fsdp
