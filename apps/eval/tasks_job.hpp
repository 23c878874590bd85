#pragma once
// Benchmarks: fsdp-eval --tasks.
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/training/evaluate/statistics.hpp"
#include "lib/training/evaluate/subject.hpp"

namespace fsdp {

struct TaskOptions {
  std::vector<std::string> names;  ///< tasks, groups, tags, files and folders
  std::vector<std::string> include_paths;
  std::optional<double> limit;
  std::optional<std::int64_t> num_fewshot;
  std::int64_t seed = 1234;
  std::int64_t bootstrap_iters = 100'000;
  bool apply_chat_template = false;
  bool fewshot_as_multiturn = true;
  std::string log_samples;           ///< file; empty: none
  std::vector<std::string> results;  ///< files to show in one table, in place of an evaluation

  bool any() const { return !names.empty(); }
};

/// "NAME  what it is" of each task and group that is known.
std::vector<std::string> list_tasks(const TaskOptions& options);

/// The tasks of an evaluation, which are asked of one model or of two.
class TasksJob {
 public:
  /// Reads the tasks and their rows, on rank 0. Collective. \throws on every rank what TaskCatalog, read_task_rows()
  /// and ask_task() throw; UsageError for a gate on a metric that no task has
  TasksJob(ProcessGroup& world, const TaskOptions& options, const std::vector<Gate>& gates);
  ~TasksJob();

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
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
