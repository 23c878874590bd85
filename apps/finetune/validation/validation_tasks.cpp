#include "apps/finetune/validation/validation_tasks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/reports/runs/step_report.hpp"

namespace fsdp::detail {
namespace {

/// Requests of a rank at a time, so that a forward pass has about as many tokens as one of training.
std::int64_t batch_size_of(const RunSetup& setup) {
  const auto row = setup.train_data ? setup.train_data->tokens_per_row() : longest_row(setup.config);
  return std::max<std::int64_t>(
      1, setup.batches.micro_batch_size * row / std::max<std::int64_t>(1, setup.tasks->questions.longest()));
}

nlohmann::json to_json(const TaskFigureLine& figure) {
  return {figure.task,
          figure.name,
          figure.value,
          figure.error ? nlohmann::json(*figure.error) : nlohmann::json(),
          figure.higher_is_better,
          figure.is_in_group,
          figure.count};
}

double number_of(const nlohmann::json& value) { return value.is_number() ? value.get<double>() : std::nan(""); }

TaskFigureLine from_json(const nlohmann::json& json) {
  TaskFigureLine figure;
  figure.task = json[0].get<std::string>();
  figure.name = json[1].get<std::string>();
  figure.value = number_of(json[2]);  // JSON has no NaN
  if (json[3].is_number()) figure.error = json[3].get<double>();
  figure.higher_is_better = json[4].get<bool>();
  figure.is_in_group = json[5].get<bool>();
  figure.count = json[6].get<std::int64_t>();
  return figure;
}

std::vector<TaskFigureLine> figures_of(const TaskResults& results) {
  std::vector<TaskFigureLine> figures;
  for (const auto& scored : results.scores()) {
    for (const auto& score : scored.scores) {
      figures.push_back({scored.name, task_metric_name(scored.name, score.metric, score.filter), score.figure.value,
                         score.figure.error, score.higher_is_better, results.is_in_figure_of_group(scored.name),
                         static_cast<std::int64_t>(score.figure.count)});
    }
  }
  return figures;
}

}  // namespace

bool is_task_metric(const std::string& name) { return name.find('.') != std::string::npos; }

void check_task_options(const TrainOptions& options) {
  const auto& tasks = options.validation.tasks;
  if (tasks.limit && !(*tasks.limit > 0)) throw UsageError("--val-limit is a number of rows, or a share below 1");
  if (tasks.num_fewshot && *tasks.num_fewshot < 0) throw UsageError("--val-num-fewshot is negative");
  if (!tasks.names.empty()) return;
  if (tasks.limit || tasks.num_fewshot || tasks.chat || !tasks.every.never())
    throw UsageError(
        "--val-tasks-every, --val-limit, --val-num-fewshot and --val-apply-chat-template go with --val-tasks");
}

void load_validation_tasks(ProcessGroup& world, RunSetup& setup, const Logger& log) {
  const auto& asked = setup.options.validation.tasks;
  if (asked.names.empty()) return;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (tokenizer == nullptr) throw UsageError("--val-tasks: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  std::unique_ptr<TaskSet> set;
  TaskWriting writing{*tokenizer, longest_row(setup.config), nullptr, true, ""};
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    TaskChoice choice;
    choice.names = asked.names;
    choice.limit = asked.limit;
    choice.num_fewshot = asked.num_fewshot;
    set = std::make_unique<TaskSet>(choice);
    if (asked.chat) writing.chat = find_chat_template(setup.options.conversations.chat_template, name);
  });
  AskedTasks questions(world, set.get(), writing);
  auto metrics = nlohmann::json::array();
  if (set) {
    for (const auto& [metric, higher] : set->metrics()) metrics.push_back({metric, higher});
  }
  metrics = nlohmann::json::parse(world.broadcast_text(metrics.dump(), 0));
  if (is_task_metric(setup.deciding.metric)) {
    std::vector<std::string> names;
    for (const auto& metric : metrics) names.push_back(metric[0].get<std::string>());
    const auto found = std::ranges::find(names, setup.deciding.metric);
    if (found == names.end()) {
      throw UsageError(fmt::format("--keep-best {}: the tasks of --val-tasks have no such metric, but {}",
                                   setup.deciding.metric, fmt::join(names, ", ")));
    }
    setup.deciding.higher_is_better = metrics[static_cast<std::size_t>(found - names.begin())][1].get<bool>();
  }
  if (questions.cut() > 0) log.warning(questions.cut_words());
  if (world.rank() == 0) {
    log.info(fmt::format("tasks     {} of {}",
                         format_count_of(static_cast<std::int64_t>(questions.num_requests()), "request"),
                         format_count_of(std::ssize(set->selection().tasks), "task")));
  }
  auto ends = answer_ends(*tokenizer, {setup.options.adapter, setup.options.model.directory, name});
  setup.tasks.emplace(ValidationTaskSet{std::move(questions), std::move(ends)});
}

std::optional<TaskEvaluation> ask_tasks(ModelRuntime& runtime, const RunSetup& setup,
                                        const std::function<bool()>& stopped) {
  auto& world = runtime.world();
  const FlightWork work(world.recorder(), "answer tasks");
  const auto start = std::chrono::steady_clock::now();
  const auto& tasks = *setup.tasks;
  TaskRound round;
  round.ends = tasks.ends;
  round.batch_size = batch_size_of(setup);
  round.stopped = stopped;
  const auto answers = tasks.questions.ask(runtime, round);
  if (!answers) return std::nullopt;
  // Errors of figures that are no means are bootstrapped: with fewer samples than at the end of an evaluation.
  constexpr std::int64_t kBootstraps = 1000;
  auto figures = nlohmann::json::array();
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    for (const auto& figure : figures_of(tasks.questions.results(*answers, kBootstraps)))
      figures.push_back(to_json(figure));
  });
  TaskEvaluation result;
  for (const auto& figure : nlohmann::json::parse(world.broadcast_text(figures.dump(), 0)))
    result.figures.push_back(from_json(figure));
  result.seconds = seconds_since(start);
  return result;
}

const TaskFigureLine* find_figure(const TaskEvaluation& tasks, const std::string& name) {
  const auto found = std::ranges::find_if(tasks.figures, [&](const auto& figure) { return figure.name == name; });
  return found == tasks.figures.end() ? nullptr : &*found;
}

std::vector<std::string> task_lines(std::int64_t step, const TaskEvaluation& tasks, const std::string& deciding,
                                    const std::string& verdict) {
  std::vector<std::string> lines;
  const TaskFigureLine* before = nullptr;
  std::optional<std::size_t> decides;
  for (const auto& figure : tasks.figures) {
    if (figure.is_in_group && figure.name != deciding) continue;
    if (before == nullptr || before->task != figure.task)
      lines.push_back(fmt::format("task   {:>6}   {}", step, figure.task));
    before = &figure;
    if (figure.name == deciding) decides = lines.size() - 1;
    lines.back() += fmt::format("   {} {:.4f}", figure.name.substr(figure.task.size() + 1), figure.value);
    if (figure.error) lines.back() += fmt::format(" ± {:.4f}", *figure.error);
  }
  if (!lines.empty()) lines.back() += fmt::format("   {:.1f} s", tasks.seconds);
  if (decides) lines[*decides] += verdict;
  return lines;
}

void add_figures(const TaskEvaluation& tasks, nlohmann::json& to) {
  for (const auto& figure : tasks.figures) {
    auto& one = to[figure.is_in_group ? kSubtasksKey : kTasksKey][figure.name];
    one = {{"value", figure.value}, {"higher_is_better", figure.higher_is_better}};
    if (figure.error) one["stderr"] = *figure.error;
  }
}

nlohmann::json tasks_record(std::int64_t step, const TaskEvaluation& tasks) {
  nlohmann::json record{{"step", step}, {"eval_seconds", tasks.seconds}};
  add_figures(tasks, record);
  return record;
}

}  // namespace fsdp::detail
