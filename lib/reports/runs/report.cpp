#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/text_format.hpp"
#include "lib/reports/runs/columns.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

using detail::deciding_loss;
using detail::kMostSettings;
using detail::kNothing;
using detail::prediction_error;

/// The first row are titles.
std::vector<std::vector<std::string>> cells_of(const RunComparison& comparison, std::vector<bool>& is_text) {
  std::vector<std::vector<std::string>> rows(comparison.runs.size() + 1);
  for (const auto& column : detail::columns_of(comparison)) {
    is_text.push_back(!column.number);
    rows[0].push_back(column.title);
    for (std::size_t i = 0; i < comparison.in_order.size(); ++i)
      rows[i + 1].push_back(column.cell(comparison.runs[comparison.in_order[i]]));
  }
  return rows;
}

/// Characters of UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

std::string remarks(const RunComparison& comparison) {
  std::string text;
  if (comparison.differ.size() > kMostSettings) {
    const auto names =
        fmt::format("{}", fmt::join(comparison.differ.begin() + kMostSettings, comparison.differ.end(), ", "));
    text += fmt::format("They differ in {} more settings (--json has them): {}\n",
                        comparison.differ.size() - kMostSettings, printable(names));
  }
  for (const auto& run : comparison.runs) {
    if (run.files.bad_lines > 0) {
      text += fmt::format("{}: {} of metrics.jsonl hold no record and are passed over\n", printable(run.label),
                          format_count_of(run.files.bad_lines, "line"));
    }
    if (run.files.settings.empty())
      text += printable(run.label) + ": its settings are not known (no job.json, no checkpoint)\n";
  }
  return text;
}

nlohmann::json number_or_null(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

nlohmann::json spread_json(const Spread& s) {
  return {{"median", number_or_null(s.median)},
          {"spread", number_or_null(s.half_width())},
          {"quartiles", {number_or_null(s.low_quartile), number_or_null(s.high_quartile)}},
          {"range", {number_or_null(s.lowest), number_or_null(s.highest)}},
          {"steps", s.count}};
}

nlohmann::json run_json(const RunSummary& run) {
  const auto& f = run.files;
  const auto deciding = deciding_loss(run);
  auto sets = nlohmann::json::object();
  for (const auto& v : run.validation) {
    sets[v.set] = {{"last", number_or_null(v.last)}, {"best", number_or_null(v.best)}, {"best_step", v.best_step}};
  }
  auto saves = nlohmann::json::array();
  for (const auto& save : f.saves) {
    saves.push_back({{"step", save.step},
                     {"bytes", save.bytes},
                     {"seconds", save.seconds},
                     {"waited_seconds", save.waited_seconds}});
  }
  return {{"name", f.name},
          {"directory", f.directory.string()},
          {"runs", run.runs},
          {"state", to_string(f.state)},
          {"step", f.steps.empty() ? 0 : f.steps.back().step},
          {"total_steps", f.total_steps},
          {"settings", f.settings},
          {"products", f.products},
          {"parameters", number_or_null(f.parameters)},
          {"tokens_per_second", spread_json(run.tokens_per_second)},
          {"step_seconds", spread_json(run.step_seconds)},
          {"mfu", number_or_null(run.mfu)},
          {"memory_bytes", number_or_null(f.peak_bytes)},
          {"predicted_bytes", number_or_null(f.predicted_bytes)},
          {"relative_error", number_or_null(prediction_error(f))},
          {"resident_bytes", number_or_null(f.resident_bytes)},
          {"alloc_retries", number_or_null(f.alloc_retries)},
          {"received_bytes_per_step", number_or_null(run.received_bytes.median)},
          {"first_loss", number_or_null(run.first_loss)},
          {"last_loss", number_or_null(run.last_loss)},
          {"val_loss", number_or_null(deciding.last)},
          {"best_val_loss", number_or_null(deciding.best)},
          {"validation", sets},
          {"ended_early", f.ended_early},
          {"saves", saves},
          {"bad_lines", f.bad_lines}};
}

}  // namespace

std::string count_text(double n) {
  return std::isfinite(n) && std::abs(n) < 9e18 ? format_count(std::llround(n)) : kNothing;
}

nlohmann::json run_comparison_to_json(const RunComparison& comparison) {
  auto runs = nlohmann::json::array();
  for (const auto i : comparison.in_order) runs.push_back(run_json(comparison.runs[i]));
  return {{"runs", runs}, {"differ", comparison.differ}, {"sentences", comparison_sentences(comparison)}};
}

std::string run_comparison_to_text(const RunComparison& comparison) {
  std::vector<bool> is_text;
  const auto rows = cells_of(comparison, is_text);
  std::vector<std::size_t> widths(is_text.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], is_text[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const auto sentences = comparison_sentences(comparison);
  if (!sentences.empty()) text += "\n";
  for (const auto& sentence : sentences) text += sentence + "\n";
  return text + remarks(comparison);
}

std::string run_comparison_to_markdown(const RunComparison& comparison) {
  std::vector<bool> is_text;
  const auto rows = cells_of(comparison, is_text);
  const auto line = [](std::vector<std::string> cells) {
    for (auto& cell : cells) {  // a bar would end it
      for (std::size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) cell.insert(at, 1, '\\');
    }
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  std::vector<std::string> rule;
  for (const bool text : is_text) rule.emplace_back(text ? "---" : "---:");
  auto text = line(rows.front()) + line(rule);
  for (std::size_t i = 1; i < rows.size(); ++i) text += line(rows[i]);
  for (const auto& sentence : comparison_sentences(comparison)) text += "\n" + sentence;
  return text + "\n" + remarks(comparison);
}

}  // namespace fsdp
