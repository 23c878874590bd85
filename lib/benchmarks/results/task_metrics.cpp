#include "lib/benchmarks/results/task_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <thread>

#include "lib/base/types/error.hpp"
#include "lib/benchmarks/results/answer_filter.hpp"
#include "lib/benchmarks/results/python_sum.hpp"
#include "lib/benchmarks/tasks/python_random.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;

/// The first of the largest; what is no number counts as the least.
std::int64_t best_of(const std::vector<double>& values) {
  const auto less = [](double a, double b) { return (std::isnan(a) && !std::isnan(b)) || a < b; };
  return std::max_element(values.begin(), values.end(), less) - values.begin();
}

std::vector<double> softmax(const std::vector<double>& values) {
  const auto most = *std::max_element(values.begin(), values.end());
  std::vector<double> shares;
  double sum = 0;
  for (const auto value : values) sum += shares.emplace_back(std::exp(value - most));
  for (auto& share : shares) share /= sum;
  return shares;
}

/// Pieces that re.split(r"\s+") makes of a text.
std::int64_t count_words(const std::string& text) {
  std::int64_t words = 1;
  bool in_space = false;
  for (const auto c : jinja::characters(text)) {
    const bool space = jinja::is_space(c);
    if (space && !in_space) ++words;
    in_space = space;
  }
  return words;
}

double sample_deviation(const std::vector<double>& values) {
  const auto mean = python_mean(values);
  PythonSum squares;
  for (const auto value : values) squares.add((value - mean) * (value - mean));
  return std::sqrt(squares.value() / static_cast<double>(values.size() - 1));
}

double f1_score(const std::vector<const QuestionMetric*>& values) {
  double right = 0, gold = 0, chosen = 0;
  for (const auto* value : values) {
    gold += value->value;
    chosen += value->weight;
    right += value->value * value->weight;
  }
  return gold + chosen == 0 ? 0 : 2 * right / (gold + chosen);
}

/// Source: sklearn.metrics.matthews_corrcoef
double matthews_correlation(const std::vector<const QuestionMetric*>& values) {
  std::map<double, std::pair<double, double>> counts;  // of each choice: as the right one, as the model's
  double right = 0;
  for (const auto* value : values) {
    ++counts[value->value].first;
    ++counts[value->weight].second;
    right += value->value == value->weight ? 1 : 0;
  }
  const auto n = static_cast<double>(values.size());
  double both = 0, of_gold = 0, of_chosen = 0;
  for (const auto& [choice, count] : counts) {
    both += count.first * count.second;
    of_gold += count.first * count.first;
    of_chosen += count.second * count.second;
  }
  const auto spread = (n * n - of_chosen) * (n * n - of_gold);
  return spread == 0 ? 0 : (right * n - both) / std::sqrt(spread);
}

/// Aggregates all values, in the order of the questions.
double aggregated(const std::string& how, const std::vector<const QuestionMetric*>& values) {
  if (how == "f1") return f1_score(values);
  if (how == "matthews_corrcoef") return matthews_correlation(values);
  PythonSum sum;
  double weight = 0;
  for (const auto* value : values) {
    sum.add(value->value);
    weight += value->weight;
  }
  if (how == "perplexity") return std::exp(-(sum.value() / static_cast<double>(values.size())));
  if (how == "weighted_perplexity") return std::exp(-(sum.value() / weight));
  if (how == "bits_per_byte") return -(sum.value() / weight) / std::numbers::ln2;
  return sum.value() / static_cast<double>(values.size());
}

/// The standard deviation of what an aggregation makes of questions that are drawn with replacement: each thousand by
/// the random numbers of its number.
double bootstrap_error(const std::string& how, const std::vector<const QuestionMetric*>& values,
                       std::int64_t iterations) {
  constexpr std::int64_t kMostPerChunk = 1000;
  const auto per_chunk = std::min(kMostPerChunk, iterations);
  const auto chunks = iterations / per_chunk;
  std::vector<double> results(static_cast<std::size_t>(chunks * per_chunk));
  const auto threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, chunks);
  const auto work = [&](std::int64_t first) {
    std::vector<const QuestionMetric*> drawn(values.size());
    for (auto chunk = first; chunk < chunks; chunk += threads) {
      PythonRandom random(chunk);
      for (std::int64_t i = 0; i < per_chunk; ++i) {
        for (auto& one : drawn)
          one = values[static_cast<std::size_t>(random.real() * static_cast<double>(values.size()))];
        results[static_cast<std::size_t>(chunk * per_chunk + i)] = aggregated(how, drawn);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
  }
  return sample_deviation(results);
}

}  // namespace

struct TaskJudge::Parts {
  Task task;
  std::vector<AnswerFilter> filters;
  std::optional<ExactMatch> exact;

  QuestionMetric number(const std::string& name, double value, bool whole = false) const {
    return {name, whole ? ordered_json(static_cast<std::int64_t>(value)) : ordered_json(value), value, 1};
  }

  std::vector<QuestionMetric> of_choices(const TaskQuestion& question, const std::vector<TaskAnswer>& answers) const {
    const auto count = question.choices.size();
    std::vector<double> sums, by_characters, by_bytes, by_information;
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = sums.emplace_back(answers[i].log_likelihood);
      by_characters.push_back(sum / static_cast<double>(jinja::count_characters(question.choices[i])));
      by_bytes.push_back(sum / static_cast<double>(question.choices[i].size()));
      if (answers.size() == 2 * count) by_information.push_back(sum - answers[count + i].log_likelihood);
    }
    const auto is_gold = [&](std::int64_t choice) {
      return std::find(question.gold.begin(), question.gold.end(), choice) != question.gold.end();
    };
    const auto shares = softmax(sums);
    std::vector<QuestionMetric> metrics;
    for (const auto& metric : task.metrics) {
      const auto& name = metric.name;
      if (task.gold_probability) {
        double all = 0, right = 0;
        for (std::size_t i = 0; i < count; ++i) {
          all += std::exp(sums[i]);
          if (is_gold(static_cast<std::int64_t>(i))) right += std::exp(sums[i]);
        }
        metrics.push_back(number(name, right / all));
      } else if (name == "acc") {
        metrics.push_back(number(name, is_gold(best_of(sums)) ? 1 : 0));
      } else if (name == "acc_norm") {
        metrics.push_back(number(name, is_gold(best_of(by_characters)) ? 1 : 0));
      } else if (name == "acc_bytes") {
        metrics.push_back(number(name, is_gold(best_of(by_bytes)) ? 1 : 0));
      } else if (name == "acc_mutual_info") {
        metrics.push_back(number(name, is_gold(best_of(by_information)) ? 1 : 0));
      } else if (name == "exact_match") {
        const bool holds = std::any_of(question.gold.begin(), question.gold.end(), [&](std::int64_t gold) {
          return answers[static_cast<std::size_t>(gold)].is_greedy;
        });
        metrics.push_back(number(name, holds ? 1 : 0, true));
      } else if (name == "brier_score") {
        QuestionMetric score{name, ordered_json::array({question.gold.front(), shares}), 0, 1};
        for (std::size_t i = 0; i < count; ++i) {
          const auto distance = shares[i] - (static_cast<std::int64_t>(i) == question.gold.front() ? 1 : 0);
          score.value += distance * distance;
        }
        metrics.push_back(std::move(score));
      } else {  // f1, mcc
        const auto gold = question.gold.front(), chosen = best_of(sums);
        metrics.push_back(
            {name, ordered_json::array({gold, chosen}), static_cast<double>(gold), static_cast<double>(chosen)});
      }
    }
    return metrics;
  }

  std::vector<QuestionMetric> of_page(const TaskQuestion& question, double log_likelihood) const {
    std::vector<QuestionMetric> metrics;
    for (const auto& metric : task.metrics) {
      const auto weight =
          metric.name == "word_perplexity" ? count_words(question.counted) : std::ssize(question.counted);
      metrics.push_back(
          {metric.name, ordered_json::array({log_likelihood, weight}), log_likelihood, static_cast<double>(weight)});
    }
    return metrics;
  }
};

TaskJudge::TaskJudge(const Task& task) {
  auto parts = std::make_unique<Parts>();
  parts->task = task;
  for (const auto& filter : task.filters) parts->filters.emplace_back(filter, task.file);
  for (const auto& metric : task.metrics) {
    if (metric.name == "exact_match") parts->exact.emplace(metric, task.file);
  }
  parts_ = std::move(parts);
}

TaskJudge::~TaskJudge() = default;
TaskJudge::TaskJudge(TaskJudge&&) noexcept = default;

std::size_t TaskJudge::num_filters() const { return parts_->filters.size(); }
const std::string& TaskJudge::filter_name(std::size_t filter) const { return parts_->filters[filter].name(); }

QuestionResult TaskJudge::judge(const TaskQuestion& question, const std::vector<TaskAnswer>& answers,
                                std::size_t filter) const {
  QuestionResult result;
  result.filtered = ordered_json::array();
  switch (parts_->task.output) {
    case TaskOutput::generate_until: {
      const auto answer = parts_->filters[filter].answer(answers.front().text);
      result.filtered.push_back(answer);
      const auto text = answer.is_string() ? answer.get<std::string>() : answer.dump();
      const bool holds = std::any_of(question.answers.begin(), question.answers.end(),
                                     [&](const auto& gold) { return parts_->exact->holds(text, gold); });
      result.metrics.push_back(parts_->number("exact_match", holds ? 1 : 0));
      return result;
    }
    case TaskOutput::loglikelihood_rolling:
      result.filtered.push_back(answers.front().log_likelihood);
      result.metrics = parts_->of_page(question, answers.front().log_likelihood);
      return result;
    case TaskOutput::loglikelihood:
    case TaskOutput::multiple_choice:
      break;
  }
  for (const auto& answer : answers)
    result.filtered.push_back(ordered_json::array({answer.log_likelihood, answer.is_greedy}));
  if (parts_->task.output == TaskOutput::multiple_choice) {
    result.metrics = parts_->of_choices(question, answers);
    return result;
  }
  for (const auto& metric : parts_->task.metrics) {
    const bool greedy = metric.name == "acc";
    result.metrics.push_back(parts_->number(
        metric.name, greedy ? (answers.front().is_greedy ? 1 : 0) : answers.front().log_likelihood, greedy));
  }
  return result;
}

TaskFigure figure_of(const TaskMetric& metric, const std::vector<QuestionMetric>& given, std::int64_t iterations,
                     const std::string& file) {
  std::vector<const QuestionMetric*> values;
  std::vector<double> numbers;
  for (const auto& one : given) {
    values.push_back(&one);
    numbers.push_back(one.value);
    if (metric.aggregation == "f1" && (one.value > 1 || one.weight > 1))
      throw FormatError(fmt::format("{}: metric f1 is for two choices, and there are more", file));
  }
  TaskFigure figure{aggregated(metric.aggregation, values), {}, values.size()};
  if (values.size() < 2) return figure;
  static const std::set<std::string, std::less<>> kBootstrapped{"perplexity", "f1", "matthews_corrcoef"};
  if (metric.aggregation == "mean") {
    figure.error = sample_deviation(numbers) / std::sqrt(static_cast<double>(numbers.size()));
  } else if (kBootstrapped.contains(metric.aggregation) && iterations > 0) {
    figure.error = bootstrap_error(metric.aggregation, values, iterations);
  }
  return figure;
}

TaskFigure figure_of_group(const std::vector<TaskFigure>& tasks, bool weight_by_size) {
  PythonSum sum, squares;
  double weight = 0, sizes = 0;
  TaskFigure figure;
  bool has_error = true;
  for (const auto& task : tasks) {
    const auto size = static_cast<double>(task.count), share = weight_by_size ? size : 1;
    sum.add(task.value * share);
    weight += share;
    sizes += size;
    figure.count += task.count;
    has_error = has_error && task.error.has_value();
    const auto error = task.error.value_or(0);
    squares.add(weight_by_size ? (size - 1) * (error * error) * size : error * error);
  }
  figure.value = sum.value() / weight;
  const auto k = static_cast<double>(tasks.size());
  if (has_error) {
    figure.error = weight_by_size ? std::sqrt(squares.value() / (sizes - k) / sizes) : std::sqrt(squares.value()) / k;
  }
  return figure;
}

}  // namespace fsdp
