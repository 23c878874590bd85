// Names the best of several runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "lib/base/text/text_format.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

/// A run's lowest loss, and where it had it.
struct Lowest {
  double loss = kNoNumber;
  std::int64_t step = 0;
};

Lowest lowest_in_validation(const RunSummary& run, const std::string& set, std::int64_t last_step) {
  Lowest lowest;
  for (const auto& eval : run.files.evals) {
    if (!eval.is_loss || eval.set != set || eval.step > last_step || !std::isfinite(eval.value)) continue;
    if (!(eval.value >= lowest.loss)) lowest = {eval.value, eval.step};
  }
  return lowest;
}

Lowest last_in_training(const RunSummary& run, std::int64_t last_step) {
  Lowest last;
  for (const auto& step : run.files.steps) {
    const bool has_loss = step.tokens > 0 || !std::isnan(step.loss);
    if (has_loss && step.step <= last_step) last = {step.loss, step.step};
  }
  return last;
}

double number_of(const RunFiles& run, const char* setting) {
  return std::strtod(setting_of(run, setting).c_str(), nullptr);
}

/// How far each run was trained: in steps, or in epochs where no run was given a number of steps, because the steps of
/// an epoch may differ.
struct RunLengths {
  bool in_epochs = false;
  std::vector<std::int64_t> steps;
  std::vector<double> lengths;
};

/// \return nothing where a run does not tell its length
std::optional<RunLengths> lengths_of(const std::vector<RunSummary>& runs) {
  RunLengths all;
  all.in_epochs =
      std::ranges::all_of(runs, [](const RunSummary& run) { return number_of(run.files, "max-steps") <= 0; });
  for (const auto& run : runs) {
    const auto& files = run.files;
    const auto steps = files.steps.empty() ? 0 : files.steps.back().step;
    const double epochs = number_of(files, "max-epochs"), total = static_cast<double>(files.total_steps);
    if (files.settings.empty() || (all.in_epochs && (epochs <= 0 || total <= 0))) return std::nullopt;
    all.steps.push_back(steps);
    all.lengths.push_back(all.in_epochs ? epochs * static_cast<double>(steps) / total : static_cast<double>(steps));
  }
  return all;
}

/// "a, 2.1000 at step 40; next b, 0.1000 higher."
std::string first_and_next(const BestRun& best) {
  const auto text = fmt::format("{}, {:.4f} at step {}", printable(best.run->label), best.loss, best.step);
  if (best.next == nullptr) return text + ".";
  constexpr double kShown = 5e-5;  // of four decimals
  const auto distance = best.next_loss - best.loss;
  if (distance < kShown) return text + fmt::format("; {} is as good.", printable(best.next->label));
  return text + fmt::format("; next {}, {:.4f} higher.", printable(best.next->label), distance);
}

}  // namespace

std::optional<BestRun> best_run(const RunComparison& comparison, const std::vector<std::int64_t>& last_steps) {
  struct Entry {
    Lowest lowest;
    const RunSummary* run;
  };
  const auto& runs = comparison.runs;
  const auto last_step = [&](std::size_t i) {
    return last_steps.empty() ? std::numeric_limits<std::int64_t>::max() : last_steps[i];
  };
  std::vector<Entry> losses;
  std::set<std::string> sets;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto set = deciding_loss(runs[i]).set;
    const auto lowest = lowest_in_validation(runs[i], set, last_step(i));
    if (!std::isfinite(lowest.loss)) continue;
    losses.push_back({lowest, &runs[i]});
    sets.insert(set);
  }
  const bool by_validation = !losses.empty();
  const bool other_data = std::ranges::find(comparison.differ, "val-data") != comparison.differ.end();
  if (by_validation && (sets.size() > 1 || other_data)) return std::nullopt;
  for (std::size_t i = 0; i < runs.size() && !by_validation; ++i) {
    const auto last = last_in_training(runs[i], last_step(i));
    if (std::isfinite(last.loss)) losses.push_back({last, &runs[i]});
  }
  if (losses.empty()) return std::nullopt;
  std::ranges::stable_sort(losses, {}, [](const Entry& entry) { return entry.lowest.loss; });
  const auto& first = losses.front();
  BestRun best{.run = first.run, .by_validation = by_validation, .loss = first.lowest.loss, .step = first.lowest.step};
  if (by_validation) best.set = *sets.begin();
  if (losses.size() < 2) return best;
  best.next = losses[1].run;
  best.next_loss = losses[1].lowest.loss;
  return best;
}

std::string best_run_sentence(const BestRun& best) {
  return fmt::format("Best {}{}: {}", best.by_validation ? "validation" : "last loss in training",
                     best.set.empty() ? "" : " (" + printable(best.set) + ")", first_and_next(best));
}

std::string equal_length_sentence(const RunComparison& comparison) {
  const auto& runs = comparison.runs;
  const auto all = lengths_of(runs);
  if (!all) return "";
  double shortest = std::numeric_limits<double>::infinity(), longest = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    // A run that was stopped, pruned or ended by --patience is shorter than it was to be.
    if (runs[i].files.state != RunStatus::done || !runs[i].files.ended_early.empty()) continue;
    shortest = std::min(shortest, all->lengths[i]);
    longest = std::max(longest, all->lengths[i]);
  }
  constexpr double kEqual = 1e-6;  // relative
  if (!(longest > shortest * (1 + kEqual))) return "";
  std::vector<std::int64_t> last_steps;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double part = all->lengths[i] > shortest ? shortest / all->lengths[i] : 1;
    last_steps.push_back(std::llround(part * static_cast<double>(all->steps[i])));
  }
  const auto best = best_run(comparison, last_steps);
  if (!best || !best->by_validation || best->next == nullptr) return "";
  return fmt::format("At equal length, {:g} {}: {}", shortest, all->in_epochs ? "epochs" : "steps",
                     first_and_next(*best));
}

}  // namespace fsdp
