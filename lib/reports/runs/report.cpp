#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/plots/loss_curve.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMostSettings = 6;  // maximum number of settings columns, to keep the table readable
constexpr const char* kNothing = "-";

/// \return relative error of the predicted peak memory
double prediction_error(const RunFiles& run) { return (run.predicted_bytes - run.peak_bytes) / run.peak_bytes; }

std::string with_spread(const Spread& s) {
  if (s.count == 0) return kNothing;
  return fmt::format("{} ± {}", count_text(s.median), count_text(s.half_width()));
}

std::string bytes_text(double n) { return std::isfinite(n) && n >= 0 ? format_bytes(n) : kNothing; }

std::string loss_text(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : kNothing; }

std::string steps_text(const RunSummary& run) {
  const auto& files = run.files;
  if (files.steps.empty()) return "0";
  const auto last = files.steps.back().step;
  auto text = files.total_steps > last ? fmt::format("{}/{}", last, files.total_steps) : std::to_string(last);
  return run.runs > 1 ? fmt::format("{} x {}", run.runs, text) : text;
}

/// Keeps the end of a long path, which says more than its beginning.
std::string short_setting(std::string text) {
  constexpr std::size_t kWidest = 32;
  text = printable(text);
  return text.size() <= kWidest ? text : "..." + text.substr(text.size() - kWidest + 3);
}

/// A validation curve: the loss on a data set, or a metric of games.
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

/// The distinct curves of all runs.
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

void add_state(const RunComparison& comparison, std::vector<TableColumn>& columns) {
  const auto not_done = [](const RunSummary& r) {
    return r.files.state != RunStatus::done && r.files.state != RunStatus::unknown;
  };
  if (std::any_of(comparison.runs.begin(), comparison.runs.end(), not_done))
    columns.push_back({"state", [](const RunSummary& r) { return std::string(to_string(r.files.state)); }, {}});
}

void add_losses(const RunComparison& comparison, std::vector<TableColumn>& columns) {
  for (const auto& curve : validation_curves(comparison)) {
    const auto value = [curve](const RunSummary& r) { return validation_of(r, curve).last; };
    columns.push_back({curve.set.empty() ? "validation" : "validation " + printable(curve.set),
                       [value](const RunSummary& r) { return loss_text(value(r)); }, value, !curve.is_loss});
  }
  columns.push_back({"last loss", [](const RunSummary& r) { return loss_text(r.last_loss); },
                     [](const RunSummary& r) { return r.last_loss; }});
}

/// Adds columns for the settings that differ, and for the model's size if it differs, because the size may come from
/// the model's folder instead of an option.
void add_settings(const RunComparison& comparison, std::vector<TableColumn>& columns) {
  const auto& runs = comparison.runs;
  const auto is_other = [&](const RunSummary& r) {
    return parameters_text(r.files.parameters) != parameters_text(runs.front().files.parameters);
  };
  const bool sizes_differ = std::any_of(runs.begin(), runs.end(), is_other);
  const auto size = [](const RunSummary& r) { return r.files.parameters; };
  const auto add_size = [&] {
    columns.push_back({"parameters", [size](const RunSummary& r) { return parameters_text(size(r)); }, size});
  };
  bool has_size = !sizes_differ;
  for (std::size_t i = 0; i < std::min(kMostSettings, comparison.differ.size()); ++i) {
    const auto name = comparison.differ[i];
    if (!has_size && name != "lr") {
      add_size();
      has_size = true;
    }
    columns.push_back(
        {printable(name), [name](const RunSummary& r) { return short_setting(setting_of(r.files, name)); }, {}});
  }
  if (!has_size) add_size();
}

void add_figures(std::vector<TableColumn>& columns) {
  const auto of_steps = [](const RunSummary& r) {
    return r.files.steps.empty() ? 0.0 : static_cast<double>(r.files.steps.back().step);
  };
  const auto per_step = [](const RunSummary& r) { return r.step_seconds.median; };
  const auto error = [](const RunSummary& r) { return prediction_error(r.files); };
  columns.push_back({"steps", steps_text, of_steps, true});
  columns.push_back({"tokens/s", [](const RunSummary& r) { return with_spread(r.tokens_per_second); },
                     [](const RunSummary& r) { return r.tokens_per_second.median; }, true});
  columns.push_back({"s/step",
                     [](const RunSummary& r) {
                       return r.step_seconds.count == 0 ? kNothing : fmt::format("{:.3f}", r.step_seconds.median);
                     },
                     per_step});
  columns.push_back(
      {"of peak",
       [](const RunSummary& r) { return std::isfinite(r.mfu) ? fmt::format("{:.0f} %", 100 * r.mfu) : kNothing; },
       [](const RunSummary& r) { return r.mfu; }, true});
  columns.push_back({"memory", [](const RunSummary& r) { return bytes_text(r.files.peak_bytes); },
                     [](const RunSummary& r) { return r.files.peak_bytes; }});
  columns.push_back({"predicted",
                     [error](const RunSummary& r) {
                       return std::isfinite(error(r)) ? fmt::format("{:+.2f} %", 100 * error(r)) : kNothing;
                     },
                     error});
  columns.push_back({"retries", [](const RunSummary& r) { return count_text(r.files.alloc_retries); },
                     [](const RunSummary& r) { return r.files.alloc_retries; }});
  columns.push_back({"received/step", [](const RunSummary& r) { return bytes_text(r.received_bytes.median); },
                     [](const RunSummary& r) { return r.received_bytes.median; }});
  columns.push_back({"first loss", [](const RunSummary& r) { return loss_text(r.first_loss); },
                     [](const RunSummary& r) { return r.first_loss; }});
}

/// Converts a column's title to the form that users type: "last-loss".
std::string typed(const std::string& title) {
  auto text = ascii_lower(title);
  for (auto& c : text) c = c == ' ' || c == '_' ? '-' : c;
  return text;
}

/// Converts the text of a cell to a number if all of it is one, such as a learning rate or a batch size.
double number_in(const std::string& cell) {
  char* end = nullptr;
  const double number = std::strtod(cell.c_str(), &end);
  return end != cell.c_str() && *end == '\0' ? number : kNoNumber;
}

bool is_missing(const std::string& cell) { return cell == kNothing || cell == kUnknownSetting; }

constexpr double kLeast = 0.01;  // relative difference below which values count as equal

/// \return "33 % less", "1.8 times as much"; empty when the difference is negligible
std::string ratio_words(double ratio, const char* less, const char* more, const char* times) {
  if (!std::isfinite(ratio) || ratio <= 0 || std::abs(ratio - 1) < kLeast) return "";
  if (ratio >= 1.5) return fmt::format("{:.1f} times {}", ratio, times);
  if (ratio <= 0.5) return fmt::format("{:.2f} times {}", ratio, times);
  return fmt::format("{:.0f} % {}", 100 * std::abs(ratio - 1), ratio < 1 ? less : more);
}

std::string speed_words(const RunSummary& base, const RunSummary& run) {
  const auto& a = base.tokens_per_second;
  const auto& b = run.tokens_per_second;
  if (b.count == 0) return run.files.steps.empty() ? "has made no step" : "has logged no speed";
  if (std::abs(b.median - a.median) <= a.half_width() + b.half_width()) return "is as fast within the spread";
  const auto words = ratio_words(b.median / a.median, "slower", "faster", "as fast");
  return "is " + (words.empty() ? std::string("as fast") : words);
}

std::string share_words(double base, double bytes, const char* noun) {
  if (!std::isfinite(base) || !std::isfinite(bytes)) return "";
  if (base == 0 && bytes == 0) return "";
  if (base == 0 || bytes == 0) {
    return bytes == 0 ? fmt::format("needs no {}", noun) : fmt::format("needs {} of {}", format_bytes(bytes), noun);
  }
  const auto words = ratio_words(bytes / base, "less", "more", "as much");
  return words.empty() ? "" : fmt::format("needs {} {}", words, noun);
}

std::string retry_words(const RunSummary& run) {
  return run.files.alloc_retries > 0 ? fmt::format("stops for {:.0f} alloc retries", run.files.alloc_retries) : "";
}

std::string joined(const std::vector<std::string>& parts) {
  std::vector<std::string> there;
  for (const auto& part : parts) {
    if (!part.empty()) there.push_back(part);
  }
  if (there.size() < 2) return there.empty() ? "" : there.front();
  const auto last = there.back();
  there.pop_back();
  return fmt::format("{} and {}", fmt::join(there, ", "), last);
}

std::string against(const RunSummary& base, const RunSummary& run) {
  const auto memory = share_words(base.files.peak_bytes, run.files.peak_bytes, "memory");
  const auto communication = share_words(base.received_bytes.median, run.received_bytes.median, "communication");
  const bool both_are_known = std::isfinite(base.files.peak_bytes + run.files.peak_bytes) &&
                              std::isfinite(base.received_bytes.median + run.received_bytes.median);
  const bool alike = both_are_known && memory.empty() && communication.empty();
  return printable(run.label) + " " +
         joined({speed_words(base, run) + (alike ? " with as much memory and communication" : ""), memory,
                 communication, retry_words(run)});
}

/// Compares the last losses of runs with the same number of steps and tokens.
std::string loss_words(const std::vector<RunSummary>& runs) {
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  const auto& first = runs.front().files;
  for (const auto& run : runs) {
    const bool same = !run.files.steps.empty() && !first.steps.empty() &&
                      run.files.steps.back().step == first.steps.back().step &&
                      run.files.steps.back().tokens == first.steps.back().tokens;
    if (!same || !std::isfinite(run.last_loss)) return "";
    lowest = std::min(lowest, run.last_loss);
    highest = std::max(highest, run.last_loss);
  }
  if (highest == lowest) return fmt::format("Their last losses are equal, {:.4f}.", lowest);
  return fmt::format("Their last losses lie {:.2g} apart.", highest - lowest);
}

/// \return the cells of the table; the first row has the titles
std::vector<std::vector<std::string>> cells_of(const RunComparison& comparison, std::vector<bool>& is_text) {
  std::vector<std::vector<std::string>> rows(comparison.runs.size() + 1);
  for (const auto& column : columns_of(comparison)) {
    is_text.push_back(!column.number);
    rows[0].push_back(column.title);
    for (std::size_t i = 0; i < comparison.in_order.size(); ++i)
      rows[i + 1].push_back(column.cell(comparison.runs[comparison.in_order[i]]));
  }
  return rows;
}

/// \return the number of UTF-8 characters
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
      text += fmt::format("{}: {} of metrics.jsonl passed over, without a record\n", printable(run.label),
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
  auto ranks = nlohmann::json();
  if (!f.ranks.empty()) {
    const auto& last = f.ranks.back();
    ranks = {{"step", last.step},
             {"slowest", last.slowest},
             {kWaitShareKey, number_or_null(last.wait_share)},
             {"cause", last.cause}};
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
          {kRanksKey, ranks},
          {"bad_lines", f.bad_lines}};
}

bool steps_are_equally_large(const std::vector<RunSummary>& runs) {
  double tokens = -1;
  for (const auto& run : runs) {
    if (run.files.steps.empty()) continue;
    const double first = run.files.steps.front().tokens;
    if (tokens >= 0 && first != tokens) return false;
    tokens = first;
  }
  return true;
}

}  // namespace

std::string parameters_text(double n) {
  if (!std::isfinite(n) || n <= 0) return kNothing;
  if (n < 1e6) return fmt::format("{:.1f} k", n / 1e3);
  return n < 1e9 ? fmt::format("{:.1f} M", n / 1e6) : fmt::format("{:.2f} B", n / 1e9);
}

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

std::vector<TableColumn> columns_of(const RunComparison& comparison) {
  std::vector<TableColumn> columns{{"run", [](const RunSummary& r) { return printable(r.label); }, {}}};
  add_state(comparison, columns);
  add_losses(comparison, columns);
  const auto first_setting = columns.size();
  add_settings(comparison, columns);
  for (auto i = first_setting; i < columns.size(); ++i) columns[i].is_setting = true;
  add_figures(columns);
  std::erase_if(columns, [&](const TableColumn& column) {
    return std::all_of(comparison.runs.begin(), comparison.runs.end(),
                       [&](const auto& run) { return column.cell(run) == kNothing; });
  });
  return columns;
}

void sort_runs(RunComparison& comparison, const std::string& column) {
  const auto columns = columns_of(comparison);
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const auto& c) { return typed(c.title) == typed(column); });
  if (found == columns.end()) {
    std::vector<std::string> titles;
    for (const auto& c : columns) titles.push_back(typed(c.title));
    throw RequestError(
        fmt::format("--sort {}: the table has no such column; choose from {}", column, fmt::join(titles, ", ")));
  }
  std::ranges::stable_sort(comparison.in_order, [&](std::size_t a, std::size_t b) {
    const auto &first = comparison.runs[a], &second = comparison.runs[b];
    const auto x = found->number ? found->number(first) : number_in(found->cell(first));
    const auto y = found->number ? found->number(second) : number_in(found->cell(second));
    if (std::isfinite(x) != std::isfinite(y)) return std::isfinite(x);
    if (std::isfinite(x)) return found->high_is_good ? x > y : x < y;
    const auto text = found->cell(first), other = found->cell(second);
    if (is_missing(text) != is_missing(other)) return is_missing(other);
    return !found->number && text < other;
  });
}

std::vector<std::string> comparison_sentences(const RunComparison& comparison) {
  const auto& runs = comparison.runs;
  std::vector<std::string> sentences;
  if (runs.size() < 2) return sentences;
  if (const auto best = best_run(comparison); best && best->by_validation && best->next != nullptr)
    sentences.push_back(best_run_sentence(*best));
  if (const auto words = equal_length_sentence(comparison); !words.empty()) sentences.push_back(words);
  const auto base = std::ranges::find_if(runs, [](const auto& run) { return run.tokens_per_second.count > 0; });
  std::vector<std::string> parts;
  for (auto run = runs.begin(); base != runs.end() && run != runs.end(); ++run)
    if (run != base) parts.push_back(against(*base, *run));
  if (!parts.empty())
    sentences.push_back(fmt::format("Against {}: {}.", printable(base->label), fmt::join(parts, "; ")));
  if (const auto words = loss_words(runs); !words.empty()) sentences.push_back(words);
  return sentences;
}

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
    for (auto& cell : cells) {  // a '|' would end the cell in Markdown
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

RunsPicture picture_of(const RunComparison& comparison) {
  const bool over_steps = steps_are_equally_large(comparison.runs);
  RunsPicture picture;
  picture.x_name = over_steps ? "step" : "tokens";
  picture.title = comparison.runs.size() == 1 ? comparison.runs.front().label : "";
  for (const auto& name : comparison.differ) picture.title += (picture.title.empty() ? "by " : ", ") + name;
  for (const auto& summary : comparison.runs) {
    RunsPicture::Run run;
    run.label = summary.label;
    const auto deciding = deciding_loss(summary);
    auto eval = summary.files.evals.begin();
    double tokens = 0;
    const auto add_validations_before = [&](std::int64_t step) {
      for (; eval != summary.files.evals.end() && eval->step < step; ++eval) {
        if (!eval->is_loss || eval->set != deciding.set) continue;
        run.val_x.push_back(over_steps ? static_cast<double>(eval->step) : tokens);
        run.val_loss.push_back(eval->value);
      }
    };
    for (const auto& step : summary.files.steps) {
      add_validations_before(step.step);
      tokens += step.tokens;
      run.x.push_back(over_steps ? static_cast<double>(step.step) : tokens);
      run.loss.push_back(step.loss);
    }
    add_validations_before(std::numeric_limits<std::int64_t>::max());
    const auto& speed = summary.tokens_per_second;
    run.speed = speed.median;
    run.low = speed.low_quartile;
    run.high = speed.high_quartile;
    picture.runs.push_back(std::move(run));
  }
  return picture;
}

}  // namespace fsdp
