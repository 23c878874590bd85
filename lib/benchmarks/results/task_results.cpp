#include "lib/benchmarks/results/task_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "lib/benchmarks/results/markdown_table.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;

ordered_json error_json(const TaskFigure& figure) {
  return figure.error ? ordered_json(*figure.error) : ordered_json("N/A");
}

/// Python's json.dumps() and str() of a value.
std::string python_text(const ordered_json& value, const std::optional<std::string>& indent) {
  jinja::Heap heap(JinjaLimits{});
  jinja::JsonStyle style;
  style.indent = indent;
  if (indent) style.item_separator = ",";
  return jinja::to_json(heap, jinja::from_json(heap, value), style);
}
std::string python_str(const ordered_json& value) {
  jinja::Heap heap(JinjaLimits{});
  return jinja::print(heap, jinja::from_json(heap, value));
}

/// Values as texts, in their lists.
ordered_json as_texts(const ordered_json& value) {
  if (!value.is_array()) return python_str(value);
  auto list = ordered_json::array();
  for (const auto& one : value) list.push_back(as_texts(one));
  return list;
}

std::string hash_of(std::string_view text) {
  ContentHash hash(HashKind::sha256, text.size());
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

/// The arguments of a request as lm-eval logs them.
ordered_json arguments_of(const Task& task, const TaskRequest& request) {
  if (task.output == TaskOutput::generate_until)
    return {{"arg_0", request.context}, {"arg_1", task.generation.as_given}};
  if (task.output == TaskOutput::loglikelihood_rolling) return {{"arg_0", request.continuation}};
  return {{"arg_0", request.context}, {"arg_1", request.continuation}};
}

ordered_json response_of(const Task& task, const TaskAnswer& answer) {
  if (task.output == TaskOutput::generate_until) return answer.text;
  if (task.output == TaskOutput::loglikelihood_rolling) return answer.log_likelihood;
  return ordered_json::array({answer.log_likelihood, answer.is_greedy});
}

std::string version_text(const ordered_json& version) { return version.is_null() ? "N/A" : python_str(version); }

}  // namespace

TaskResults::TaskResults(std::vector<AnsweredTask> tasks, std::vector<TaskGroup> groups, std::int64_t bootstraps)
    : tasks_(std::move(tasks)), groups_(std::move(groups)) {
  for (const auto& answered : tasks_) {
    const auto& task = *answered.task;
    const auto& asked = *answered.asked;
    const auto& judge = judges_.emplace_back(task);
    auto& by_filter = judged_.emplace_back();
    TaskScores scores{task.name, task.alias, false, {}};
    for (std::size_t filter = 0; filter < judge.num_filters(); ++filter) {
      auto& results = by_filter.emplace_back();
      for (std::size_t i = 0; i < asked.questions.size(); ++i)
        results.push_back(judge.judge(asked.questions[i], answered.answers[i], filter));
      for (std::size_t m = 0; m < results.front().metrics.size(); ++m) {
        const auto& name = results.front().metrics[m].name;
        const auto metric =
            std::find_if(task.metrics.begin(), task.metrics.end(), [&](const auto& one) { return one.name == name; });
        TaskScore score{name, judge.filter_name(filter), metric->higher_is_better, {}, {}};
        std::vector<QuestionMetric> values;
        for (const auto& result : results) values.push_back(result.metrics[m]);
        score.figure = figure_of(*metric, values, bootstraps, task.file);
        if (metric->aggregation == "mean") {
          for (const auto& value : values) score.by_question.push_back(value.value);
        }
        scores.scores.push_back(std::move(score));
      }
    }
    scores_.push_back(std::move(scores));
  }
  for (const auto& group : groups_) add_group(group);
}

const TaskGroup* TaskResults::find_group(const std::string& name) const {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return group.name == name; });
  return found == groups_.end() ? nullptr : &*found;
}

std::vector<std::string> TaskResults::leaves_of(const std::string& name) const {
  const auto* group = find_group(name);
  if (group == nullptr) return {name};
  std::vector<std::string> leaves;
  for (const auto& member : group->members) {
    for (auto& leaf : leaves_of(member)) leaves.push_back(std::move(leaf));
  }
  return leaves;
}

bool TaskResults::holds(const TaskGroup& group, const std::string& name) const {
  return std::ranges::any_of(group.members, [&](const std::string& member) {
    const auto* inner = find_group(member);
    return member == name || (inner != nullptr && holds(*inner, name));
  });
}

bool TaskResults::is_in_figure_of_group(const std::string& name) const {
  return std::ranges::any_of(groups_,
                             [&](const TaskGroup& group) { return !group.metrics.empty() && holds(group, name); });
}

const TaskScores& TaskResults::scores_of(const std::string& name) const {
  return *std::find_if(scores_.begin(), scores_.end(), [&](const auto& one) { return one.name == name; });
}

void TaskResults::add_group(const TaskGroup& group) {
  TaskScores scores{group.name, group.alias, true, {}};
  for (const auto& metric : group.metrics) {
    // Figures of the tasks that have the metric, by filter.
    std::map<std::string, std::vector<TaskFigure>> by_filter;
    bool higher_is_better = true;
    for (const auto& leaf : leaves_of(group.name)) {
      for (const auto& score : scores_of(leaf).scores) {
        if (score.metric != metric.metric) continue;
        if (metric.filters &&
            std::find(metric.filters->begin(), metric.filters->end(), score.filter) == metric.filters->end())
          continue;
        by_filter[score.filter].push_back(score.figure);
        higher_is_better = score.higher_is_better;
      }
    }
    for (const auto& [filter, figures] : by_filter)
      scores.scores.push_back(
          {metric.metric, filter, higher_is_better, figure_of_group(figures, metric.weight_by_size), {}});
  }
  scores_.push_back(std::move(scores));
}

ordered_json TaskResults::versions() const {
  std::map<std::string, ordered_json> sorted;
  for (const auto& one : tasks_) sorted[one.task->name] = one.task->version.is_null() ? "Yaml" : one.task->version;
  for (const auto& group : groups_) sorted[group.name] = version_text(group.version);
  return sorted;
}

ordered_json TaskResults::shots() const {
  std::map<std::string, ordered_json> sorted;
  for (const auto& one : tasks_) sorted[one.task->name] = one.asked->num_fewshot;
  for (const auto& group : groups_) {
    // Its own tasks decide; of a group of groups, theirs.
    std::set<std::int64_t> own, all;
    const auto take = [&](const std::string& name, std::set<std::int64_t>& into) {
      for (const auto& one : tasks_) {
        if (one.task->name == name) into.insert(one.asked->num_fewshot);
      }
    };
    for (const auto& member : group.members) take(member, own);
    for (const auto& leaf : leaves_of(group.name)) take(leaf, all);
    const auto& deciding = own.empty() ? all : own;
    if (deciding.size() == 1) sorted[group.name] = *deciding.begin();
  }
  return sorted;
}

ordered_json TaskResults::to_json() const {
  ordered_json results, groups, subtasks, samples;
  std::map<std::string, ordered_json> configs, better;
  const auto add_scores = [](ordered_json& to, const TaskScores& of) {
    for (const auto& score : of.scores) {
      to[score.metric + "," + score.filter] = score.figure.value;
      to[score.metric + "_stderr," + score.filter] = error_json(score.figure);
    }
  };
  for (const auto& one : tasks_) {
    const auto& scores = scores_of(one.task->name);
    auto& result = results[one.task->name];
    result = {{"name", one.task->name}, {"alias", one.task->alias}, {"sample_len", one.asked->questions.size()}};
    add_scores(result, scores);
    samples[one.task->name] = {{"original", one.asked->num_rows}, {"effective", one.asked->questions.size()}};
    configs[one.task->name] = one.task->config;
    configs[one.task->name]["num_fewshot"] = one.asked->num_fewshot;
    for (const auto& metric : one.task->metrics) better[one.task->name][metric.name] = metric.higher_is_better;
  }
  for (const auto& group : groups_) {
    const auto& scores = scores_of(group.name);
    ordered_json result{{"alias", group.alias}, {"name", group.name}};
    if (!group.metrics.empty()) {
      std::size_t count = 0;
      for (const auto& leaf : leaves_of(group.name)) {
        for (const auto& one : tasks_) count += one.task->name == leaf ? one.asked->questions.size() : 0;
      }
      result["sample_len"] = count;
      add_scores(result, scores);
      ordered_json counts;
      for (const auto& score : scores.scores) counts[score.metric + "," + score.filter] = score.figure.count;
      if (!counts.is_null()) result["sample_count"] = counts;
      groups[group.name] = result;
    }
    results[group.name] = result;
    subtasks[group.name] = group.members;
    for (const auto& leaf : leaves_of(group.name)) {
      for (const auto& [metric, higher] : better[leaf].items()) better[group.name][metric] = higher;
    }
  }
  ordered_json all{{"results", results}};
  if (!groups.is_null()) all["groups"] = groups;
  all["group_subtasks"] = subtasks.is_null() ? ordered_json::object() : subtasks;
  all["configs"] = configs;
  all["versions"] = versions();
  all["n-shot"] = shots();
  all["higher_is_better"] = better;
  all["n-samples"] = samples;
  return all;
}

std::vector<std::string> TaskResults::table() const {
  std::vector<std::vector<std::string>> rows{
      {"Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"}};
  const auto all_versions = versions(), all_shots = shots();
  std::set<std::string> shown;
  const std::function<void(const std::string&, std::size_t)> show = [&](const std::string& name, std::size_t depth) {
    if (!shown.insert(name).second) return;
    const auto& scores = scores_of(name);
    auto title = (depth == 0 ? "" : std::string(depth, ' ') + "- ") + scores.alias;
    auto version = version_text(all_versions[name]);
    const auto shot = all_shots.contains(name) ? all_shots[name].dump() : std::string();
    auto sorted = scores.scores;
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return std::pair(a.metric, a.filter) < std::pair(b.metric, b.filter);
    });
    if (sorted.empty()) rows.push_back({title, version, "", shot, "", "", "", "", ""});
    for (const auto& score : sorted) {
      rows.push_back({title, version, score.filter, shot, score.metric, score.higher_is_better ? "↑" : "↓",
                      fmt::format("{:.4f}", score.figure.value), "±",
                      score.figure.error ? fmt::format("{:.4f}", *score.figure.error) : "N/A"});
      title.clear();
      version.clear();
    }
    if (const auto* group = find_group(name)) {
      for (const auto& member : group->members) show(member, depth + 1);
    }
  };
  std::set<std::string> members;
  for (const auto& group : groups_) members.insert(group.members.begin(), group.members.end());
  for (const auto& scores : scores_) {
    if (!members.contains(scores.name)) show(scores.name, 0);
  }
  return markdown_table(rows, {1, 3, 6, 8});
}

void TaskResults::write_samples(const std::function<void(const std::string& line)>& write) const {
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const auto& task = *tasks_[t].task;
    const auto& asked = *tasks_[t].asked;
    const auto& answers = tasks_[t].answers;
    for (std::size_t filter = 0; filter < judged_[t].size(); ++filter) {
      for (std::size_t i = 0; i < asked.questions.size(); ++i) {
        const auto& question = asked.questions[i];
        const auto& result = judged_[t][filter][i];
        ordered_json arguments = ordered_json::object(), responses = ordered_json::array();
        auto names = ordered_json::array();
        for (std::size_t r = 0; r < question.requests.size(); ++r) {
          arguments[fmt::format("gen_args_{}", r)] = arguments_of(task, question.requests[r]);
          responses.push_back(ordered_json::array({response_of(task, answers[i][r])}));
        }
        for (const auto& metric : result.metrics) names.push_back(metric.name);
        const auto& first = question.requests.front();
        const auto& prompt = task.output == TaskOutput::loglikelihood_rolling ? first.continuation : first.context;
        const auto target = python_str(question.target);
        ordered_json sample{{"task", task.name},
                            {"doc_id", question.row},
                            {"doc", question.doc},
                            {"target", target},
                            {"arguments", arguments},
                            {"resps", as_texts(responses)},
                            {"filtered_resps", as_texts(result.filtered)},
                            {"filter", judges_[t].filter_name(filter)},
                            {"metrics", names},
                            {"doc_hash", hash_of(python_text(question.doc, "  "))},
                            {"prompt_hash", hash_of(prompt)},
                            {"target_hash", hash_of(target)}};
        for (const auto& metric : result.metrics) sample[metric.name] = metric.logged;
        write(python_text(sample, {}) + "\n");
      }
    }
  }
}

}  // namespace fsdp
