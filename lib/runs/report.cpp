#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/text_format.hpp"
#include "lib/runs/run_summary.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMostSettings = 6;  // columns; a table of more is read by nobody
constexpr const char* kNothing = "-";

struct Column {
  std::string title;
  bool is_text = false;
  std::function<std::string(const RunSummary&)> cell;
};

std::string with_spread(const Spread& s) {
  if (s.count == 0) return kNothing;
  return fmt::format("{} ± {}", count_text(s.median), count_text(s.half_width()));
}

std::string bytes_text(double n) { return std::isfinite(n) && n >= 0 ? format_bytes(n) : kNothing; }

std::string loss_text(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : kNothing; }

double prediction_error(const RunFiles& run) { return (run.predicted_bytes - run.peak_bytes) / run.peak_bytes; }

std::string steps_text(const RunSummary& run) {
  const auto& files = run.files;
  if (files.steps.empty()) return "0";
  const auto last = files.steps.back().step;
  auto text = files.total_steps > last ? fmt::format("{}/{}", last, files.total_steps) : std::to_string(last);
  return run.runs > 1 ? fmt::format("{} x {}", run.runs, text) : text;
}

/// The end of a long path tells more than its beginning.
std::string short_setting(std::string text) {
  constexpr std::size_t kWidest = 32;
  text = printable(text);
  return text.size() <= kWidest ? text : "..." + text.substr(text.size() - kWidest + 3);
}

/// A set's loss, or a metric of games.
struct Curve {
  std::string set;
  bool is_loss = true;
  bool operator==(const Curve&) const = default;
};

ValidationSummary validation_of(const RunSummary& run, const Curve& curve) {
  for (const auto& validation : run.validation) {
    if (Curve{validation.set, validation.is_loss} == curve) return validation;
  }
  return {};
}

/// The loss of the set that --keep-best names, else of the first.
ValidationSummary deciding_loss(const RunSummary& run) {
  ValidationSummary first;
  for (auto v = run.validation.rbegin(); v != run.validation.rend(); ++v) {
    if (v->is_loss) first = *v;
  }
  const auto named = run.files.settings.find("keep-best");
  if (named == run.files.settings.end() || named->second.empty()) return first;
  const auto found = validation_of(run, {named->second});
  return found.set == named->second ? found : first;
}

/// Of all runs, each once.
std::vector<Curve> validation_curves(const RunComparison& comparison) {
  std::vector<Curve> curves;
  for (const auto& run : comparison.runs) {
    for (const auto& validation : run.validation) {
      const Curve curve{validation.set, validation.is_loss};
      if (std::find(curves.begin(), curves.end(), curve) == curves.end()) curves.push_back(curve);
    }
  }
  return curves;
}

std::vector<Column> columns_of(const RunComparison& comparison) {
  std::vector<Column> columns{{"run", true, [](const RunSummary& r) { return printable(r.label); }}};
  const auto add = [&](const std::string& title, std::function<std::string(const RunSummary&)> cell,
                       bool is_text = false) {
    columns.push_back({title, is_text, std::move(cell)});
  };
  const auto not_done = [](const RunSummary& r) {
    return r.files.state != RunState::done && r.files.state != RunState::unknown;
  };
  if (std::any_of(comparison.runs.begin(), comparison.runs.end(), not_done)) {
    add(
        "state", [](const RunSummary& r) { return std::string(to_string(r.files.state)); }, true);
  }
  for (std::size_t i = 0; i < std::min(kMostSettings, comparison.differ.size()); ++i) {
    const auto name = comparison.differ[i];
    add(
        printable(name), [name](const RunSummary& r) { return short_setting(setting_of(r.files, name)); }, true);
  }
  add("steps", steps_text);
  add("tokens/s", [](const RunSummary& r) { return with_spread(r.tokens_per_second); });
  add("s/step", [](const RunSummary& r) {
    return r.step_seconds.count == 0 ? kNothing : fmt::format("{:.3f}", r.step_seconds.median);
  });
  add("of peak",
      [](const RunSummary& r) { return std::isfinite(r.mfu) ? fmt::format("{:.0f} %", 100 * r.mfu) : kNothing; });
  add("memory", [](const RunSummary& r) { return bytes_text(r.files.peak_bytes); });
  add("predicted", [](const RunSummary& r) {
    const double error = prediction_error(r.files);
    return std::isfinite(error) ? fmt::format("{:+.2f} %", 100 * error) : kNothing;
  });
  add("retries", [](const RunSummary& r) { return count_text(r.files.alloc_retries); });
  add("received/step", [](const RunSummary& r) { return bytes_text(r.received_bytes.median); });
  add("first loss", [](const RunSummary& r) { return loss_text(r.first_loss); });
  add("last loss", [](const RunSummary& r) { return loss_text(r.last_loss); });
  for (const auto& curve : validation_curves(comparison)) {
    add(curve.set.empty() ? "validation" : "validation " + printable(curve.set),
        [curve](const RunSummary& r) { return loss_text(validation_of(r, curve).last); });
  }
  return columns;
}

/// The first row are titles; columns in which no run has anything are left out.
std::vector<std::vector<std::string>> cells_of(const RunComparison& comparison, std::vector<bool>& is_text) {
  std::vector<std::vector<std::string>> rows(comparison.runs.size() + 1);
  for (const auto& column : columns_of(comparison)) {
    std::vector<std::string> cells;
    for (const auto& run : comparison.runs) cells.push_back(column.cell(run));
    if (std::all_of(cells.begin(), cells.end(), [](const auto& cell) { return cell == kNothing; })) continue;
    is_text.push_back(column.is_text);
    rows[0].push_back(column.title);
    for (std::size_t i = 0; i < cells.size(); ++i) rows[i + 1].push_back(cells[i]);
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
  for (const auto& run : comparison.runs) runs.push_back(run_json(run));
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
