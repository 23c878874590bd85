#include "apps/eval/tasks_job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/files/output_file.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/requests/asked_tasks.hpp"

namespace fsdp {
namespace {

/// Gives rank 0's figures to all ranks. Collective.
void share(ProcessGroup& world, std::vector<Metric>& metrics) {
  auto all = nlohmann::json::array();
  std::vector<double> influence;
  for (const auto& one : metrics) {
    all.push_back({one.name, one.higher_is_better, one.estimate.influence.size(), one.estimate.units, one.right});
    influence.push_back(one.estimate.value);
    influence.insert(influence.end(), one.estimate.influence.begin(), one.estimate.influence.end());
  }
  const auto told = nlohmann::json::parse(world.broadcast_text(nlohmann::json{influence.size(), all}.dump(), 0));
  influence.resize(told[0].get<std::size_t>());
  world.broadcast(std::as_writable_bytes(std::span(influence)), 0);
  metrics.clear();
  auto next = influence.begin();
  for (const auto& one : told[1]) {
    Metric metric{one[0].get<std::string>(), one[1].get<bool>(), {}};
    metric.estimate.value = *next++;
    metric.estimate.influence.assign(next, next + one[2].get<std::ptrdiff_t>());
    metric.estimate.units = one[3].get<std::int64_t>();
    metric.right = one[4].get<std::string>();
    next += one[2].get<std::ptrdiff_t>();
    metrics.push_back(std::move(metric));
  }
}

/// \throws UsageError for a gate on a metric that no task has
void require_metrics(const std::vector<Gate>& gates, const TaskSet& set) {
  std::vector<std::string> names;
  for (const auto& [name, higher] : set.metrics()) names.push_back(name);
  for (const auto& gate : gates) {
    if (!gate.is_of_task() || std::ranges::find(names, gate.metric) != names.end()) continue;
    throw UsageError(
        fmt::format("--gate {}: the tasks have no such metric, but {}", gate.text, fmt::join(names, ", ")));
  }
}

std::vector<Metric> metrics_of(const TaskResults& results) {
  std::vector<Metric> metrics;
  for (const auto& scored : results.scores()) {
    for (const auto& score : scored.scores) {
      Metric metric{task_metric_name(scored.name, score.metric, score.filter), score.higher_is_better, {}};
      metric.estimate.value = score.figure.value;
      if (!score.by_question.empty()) {
        const std::vector<double> ones(score.by_question.size(), 1.0);
        metric.estimate = ratio(score.by_question, ones);
        if (std::ranges::all_of(score.by_question, [](double value) { return value == 0 || value == 1; })) {
          for (const double value : score.by_question) metric.right += value == 1 ? '1' : '0';
        }
      }
      metrics.push_back(std::move(metric));
    }
  }
  return metrics;
}

}  // namespace

std::vector<std::string> list_tasks(const TaskOptions& options) {
  TaskCatalog catalog;
  for (const auto& folder : options.choice.include_paths) catalog.add_folder(folder);
  std::vector<std::string> lines;
  for (const auto& [name, what] : catalog.list()) lines.push_back(fmt::format("{:<40} {}", name, what));
  return lines;
}

TasksJob::TasksJob(ProcessGroup& world, const TaskOptions& options, const std::vector<Gate>& gates)
    : options_(options) {
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    set_ = std::make_unique<TaskSet>(options.choice);
    require_metrics(gates, *set_);
    set_->check();
  });
}

std::pair<std::vector<std::string>, std::vector<Metric>> TasksJob::evaluate(ModelRuntime& runtime, const Run& run,
                                                                            const Logger& log, nlohmann::json& report) {
  const auto start = std::chrono::steady_clock::now();
  auto& world = runtime.world();
  const auto& subject = run.subject;
  TaskWriting writing{*subject.tokenizer, longest_row(subject.config), nullptr, options_.fewshot_as_multiturn,
                      run.system.value_or("")};
  run_agreed(world, [&] {
    if (options_.apply_chat_template && world.rank() == 0) {
      writing.chat = find_chat_template(run.conversations.chat_template, subject.tokenizer_name, subject.chat_template);
    }
  });
  const AskedTasks asked(world, set_.get(), writing);
  if (asked.cut() > 0) log.warning(asked.cut_words());
  constexpr double kSecondsBetweenLines = 30;
  Progress progress(log, run.show_progress, kSecondsBetweenLines);
  TaskRound round;
  round.batch_size = run.batch_size;
  round.alike = run.alike;
  round.ends = answer_ends(*subject.tokenizer, {subject.adapter, subject.path, subject.tokenizer_name});
  round.progress = [&](const char* what, std::size_t count, double done) {
    progress.show_share(fmt::format("{:<9}", what), done,
                        fmt::format("{} of {}", format_count(std::llround(done * static_cast<double>(count))),
                                    format_count(static_cast<std::int64_t>(count))));
  };
  const auto answers = asked.ask(runtime, round);
  std::pair<std::vector<std::string>, std::vector<Metric>> told;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    const auto results = asked.results(*answers, options_.bootstrap_iters);
    const auto json = results.to_json();
    for (const auto& [key, value] : json.items()) report[key] = value;
    report["tasks_seconds"] = seconds_since(start);
    report["requests"] = asked.num_requests();
    report["requests_cut"] = asked.cut();
    told = {results.table(), metrics_of(results)};
    if (options_.log_samples.empty()) return;
    std::string samples;
    results.write_samples([&](const std::string& line) { samples += line; });
    write_output(options_.log_samples, samples);
  });
  share(world, told.second);
  return told;
}

}  // namespace fsdp
