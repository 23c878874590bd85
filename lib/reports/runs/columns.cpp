#include "lib/reports/runs/columns.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"

namespace fsdp {
namespace detail {
namespace {

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

/// 1.2 k, 16.1 M, 7.0 B: as the programs say it.
std::string parameters_text(double n) {
  if (!std::isfinite(n) || n <= 0) return kNothing;
  if (n < 1e6) return fmt::format("{:.1f} k", n / 1e3);
  return n < 1e9 ? fmt::format("{:.1f} M", n / 1e6) : fmt::format("{:.2f} B", n / 1e9);
}

void add_state(const RunComparison& comparison, std::vector<Column>& columns) {
  const auto not_done = [](const RunSummary& r) {
    return r.files.state != RunState::done && r.files.state != RunState::unknown;
  };
  if (std::any_of(comparison.runs.begin(), comparison.runs.end(), not_done))
    columns.push_back({"state", [](const RunSummary& r) { return std::string(to_string(r.files.state)); }, {}});
}

void add_losses(const RunComparison& comparison, std::vector<Column>& columns) {
  for (const auto& curve : validation_curves(comparison)) {
    const auto value = [curve](const RunSummary& r) { return validation_of(r, curve).last; };
    columns.push_back({curve.set.empty() ? "validation" : "validation " + printable(curve.set),
                       [value](const RunSummary& r) { return loss_text(value(r)); }, value, !curve.is_loss});
  }
  columns.push_back({"last loss", [](const RunSummary& r) { return loss_text(r.last_loss); },
                     [](const RunSummary& r) { return r.last_loss; }});
}

/// With the model's size where it is not the same: options may leave it to the model's folder.
void add_settings(const RunComparison& comparison, std::vector<Column>& columns) {
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

void add_figures(std::vector<Column>& columns) {
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

/// As it may be typed: "last-loss".
std::string typed(const std::string& title) {
  std::string text = title;
  for (auto& c : text) c = c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// What a row has of a column that is text, as a number where all of it is one: a learning rate, a batch.
double number_in(const std::string& cell) {
  char* end = nullptr;
  const double number = std::strtod(cell.c_str(), &end);
  return end != cell.c_str() && *end == '\0' ? number : kNoNumber;
}

}  // namespace

double prediction_error(const RunFiles& run) { return (run.predicted_bytes - run.peak_bytes) / run.peak_bytes; }

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

std::vector<Column> columns_of(const RunComparison& comparison) {
  std::vector<Column> columns{{"run", [](const RunSummary& r) { return printable(r.label); }, {}}};
  add_state(comparison, columns);
  add_losses(comparison, columns);
  add_settings(comparison, columns);
  add_figures(columns);
  std::erase_if(columns, [&](const Column& column) {
    return std::all_of(comparison.runs.begin(), comparison.runs.end(),
                       [&](const auto& run) { return column.cell(run) == kNothing; });
  });
  return columns;
}

}  // namespace detail

void sort_runs(RunComparison& comparison, const std::string& column) {
  const auto columns = detail::columns_of(comparison);
  const auto found = std::find_if(columns.begin(), columns.end(),
                                  [&](const auto& c) { return detail::typed(c.title) == detail::typed(column); });
  if (found == columns.end()) {
    std::vector<std::string> titles;
    for (const auto& c : columns) titles.push_back(detail::typed(c.title));
    throw UsageError(
        fmt::format("--sort {}: the table has no such column; choose from {}", column, fmt::join(titles, ", ")));
  }
  std::ranges::stable_sort(comparison.in_order, [&](std::size_t a, std::size_t b) {
    const auto &first = comparison.runs[a], &second = comparison.runs[b];
    const auto x = found->number ? found->number(first) : detail::number_in(found->cell(first));
    const auto y = found->number ? found->number(second) : detail::number_in(found->cell(second));
    if (std::isfinite(x) != std::isfinite(y)) return std::isfinite(x);
    if (std::isfinite(x)) return found->high_is_good ? x > y : x < y;
    return !found->number && found->cell(first) < found->cell(second);
  });
}

}  // namespace fsdp
