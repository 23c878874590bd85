#include "apps/eval/results_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/benchmarks/results/markdown_table.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

json read_results(const std::string& file) {
  auto report = parse_json_or_discard(read_text_file(file), file);
  if (!report.is_object() || !report.value("results", json()).is_object())
    throw FormatError(file +
                      ": holds no results: expected what fsdp-eval --tasks --json printed, or lm-eval's results");
  return report;
}

/// The checkpoint that the results are of.
std::string subject_of(const json& report, const std::string& file) {
  for (const auto* key : {"checkpoint", "model_name"}) {
    if (report.contains(key) && report[key].is_string()) return report[key].get<std::string>();
  }
  return std::filesystem::path(file).stem().string();
}

/// Drops the folders that all names begin with.
void shorten(std::vector<std::string>& names) {
  auto common = names.front().rfind('/');
  for (; common != std::string::npos && common > 0; common = names.front().rfind('/', common - 1)) {
    const auto prefix = names.front().substr(0, common + 1);
    if (std::all_of(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(prefix); })) break;
  }
  if (common == std::string::npos || common == 0) return;
  for (auto& name : names) name.erase(0, common + 1);
}

/// Task, filter, shots, metric: what makes figures comparable.
using Row = std::tuple<std::string, std::string, std::string, std::string>;

/// A member of an object of objects; null where there is none.
json member(const json& report, const char* kind, const std::string& name) {
  const auto all = report.find(kind);
  return all == report.end() || !all->is_object() ? json() : all->value(name, json());
}

std::string shown(const json& result, const std::string& metric, const std::string& filter) {
  const auto error = result.value(metric + "_stderr," + filter, json());
  return fmt::format("{:.4f}", result[metric + "," + filter].get<double>()) +
         (error.is_number() ? fmt::format(" ± {:.4f}", error.get<double>()) : "");
}

}  // namespace

std::vector<std::string> results_table(const std::vector<std::string>& files) {
  std::vector<std::string> header{"Tasks", "Filter", "n-shot", "Metric"};
  std::vector<std::string> subjects;
  std::vector<std::pair<Row, std::vector<std::string>>> figures;  // by file
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto report = read_results(files[f]);
    subjects.push_back(subject_of(report, files[f]));
    for (const auto& [task, result] : report["results"].items()) {
      if (!result.is_object()) throw FormatError(fmt::format("{}: results: {} is no object", files[f], task));
      const auto shots = member(report, "n-shot", task);
      const auto better = member(report, "higher_is_better", task);
      for (const auto& [key, value] : result.items()) {
        const auto comma = key.find(',');
        if (comma == std::string::npos || !value.is_number() || key.substr(0, comma).ends_with("_stderr")) continue;
        const auto metric = key.substr(0, comma), filter = key.substr(comma + 1);
        const auto higher = better.is_object() ? better.value(metric, json()) : json();
        const auto arrow = higher.is_boolean() ? (higher.get<bool>() ? " ↑" : " ↓") : "";
        const Row row{task, filter, shots.is_number() ? shots.dump() : "", metric + arrow};
        auto known = std::find_if(figures.begin(), figures.end(), [&](const auto& one) { return one.first == row; });
        if (known == figures.end()) known = figures.insert(known, {row, std::vector<std::string>(files.size())});
        known->second[f] = shown(result, metric, filter);
      }
    }
  }
  shorten(subjects);
  header.insert(header.end(), subjects.begin(), subjects.end());
  std::stable_sort(figures.begin(), figures.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::vector<std::string>> rows{header};
  std::string last;
  for (const auto& [row, values] : figures) {
    const auto& [task, filter, shots, metric] = row;
    auto& cells = rows.emplace_back(std::vector<std::string>{task == last ? "" : task, filter, shots, metric});
    cells.insert(cells.end(), values.begin(), values.end());
    last = task;
  }
  std::set<std::size_t> right{2};
  for (std::size_t i = 4; i < header.size(); ++i) right.insert(i);
  return markdown_table(rows, right);
}

}  // namespace fsdp
