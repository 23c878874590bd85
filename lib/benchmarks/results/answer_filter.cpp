#include "lib/benchmarks/results/answer_filter.hpp"

#include <algorithm>
#include <cctype>

#include "lib/templates/jinja/jinja_case.hpp"
#include "lib/templates/jinja/jinja_functions.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

/// The match that a step selects, as findall() and group_select do; the fallback where there is none.
std::string selected(const PythonRegex& pattern, const FilterStep& step, const std::string& text) {
  const auto matches = pattern.find_all(text);
  const auto count = std::ssize(matches);
  const auto at = step.group_select < 0 ? count + step.group_select : step.group_select;
  if (at < 0 || at >= count) return step.fallback;
  const auto& groups = matches[static_cast<std::size_t>(at)];
  const auto found = groups.size() == 1
                         ? groups.begin()
                         : std::find_if(groups.begin(), groups.end(), [](const auto& group) { return !group.empty(); });
  return found == groups.end() ? step.fallback : std::string(jinja::strip(*found));
}

}  // namespace

AnswerFilter::AnswerFilter(const TaskFilter& filter, const std::string& file) : filter_(filter) {
  for (const auto& step : filter.steps) {
    if (step.function == "regex") patterns_.emplace_back(step.pattern, file + ": filter_list: " + filter.name);
  }
}

nlohmann::ordered_json AnswerFilter::answer(const std::string& text) const {
  nlohmann::ordered_json answer = text;
  auto pattern = patterns_.begin();
  for (const auto& step : filter_.steps) {
    const auto current = answer.is_string() ? answer.get<std::string>() : std::string();
    if (step.function == "regex") answer = selected(*pattern++, step, current);
    if (step.function == "remove_whitespace") answer = std::string(jinja::strip(current));
    if (step.function == "lowercase") answer = jinja::lower_case(current);
    if (step.function == "uppercase") answer = jinja::utf8_of(jinja::upper(jinja::characters(current)));
    if (step.function == "map") answer = step.mapping.contains(current) ? step.mapping[current] : step.otherwise;
  }
  return answer;
}

ExactMatch::ExactMatch(const TaskMetric& metric, const std::string& file) : metric_(metric) {
  for (const auto& pattern : metric.regexes_to_ignore)
    ignored_.emplace_back(pattern, file + ": metric_list: regexes_to_ignore");
}

std::string ExactMatch::normal(std::string text) const {
  for (const auto& pattern : ignored_) text = pattern.replace(text, "");
  if (metric_.ignore_case) text = jinja::lower_case(text);
  const auto is = [](int (*kind)(int)) { return [kind](char c) { return kind(static_cast<unsigned char>(c)) != 0; }; };
  if (metric_.ignore_punctuation) std::erase_if(text, is(std::ispunct));
  if (metric_.ignore_numbers) std::erase_if(text, is(std::isdigit));
  return text;
}

bool ExactMatch::holds(const std::string& answer, const std::string& gold) const {
  return normal(answer) == normal(gold);
}

}  // namespace fsdp
