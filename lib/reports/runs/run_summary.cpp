#include "lib/reports/runs/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <string_view>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kFewestSteps = 3;

template <typename Value>
Spread spread_over(const std::vector<SpeedSample>& steps, const Value& value) {
  std::vector<double> sample;
  sample.reserve(steps.size());
  for (const auto& step : steps) {
    if (const double x = value(step); std::isfinite(x) && x >= 0) sample.push_back(x);
  }
  return spread_of(std::move(sample));
}

void count_speed(RunSummary& run) {
  run.tokens_per_second = spread_over(run.speed_steps, [](const SpeedSample& s) { return s.tokens_per_second; });
  run.step_seconds = spread_over(run.speed_steps, [](const SpeedSample& s) { return s.seconds; });
  run.received_bytes = spread_over(run.speed_steps, [](const SpeedSample& s) { return s.received_bytes; });
  run.mfu = spread_over(run.speed_steps, [](const SpeedSample& s) { return s.mfu; }).median;
}

RunSummary summarize(RunFiles files) {
  RunSummary run;
  run.speed_steps = steps_for_speed(files.steps);
  // Steps without targets have no loss and are ignored.
  const auto has_loss = [](const StepLine& step) { return step.tokens > 0 || !std::isnan(step.loss); };
  const auto first = std::find_if(files.steps.begin(), files.steps.end(), has_loss);
  const auto last = std::find_if(files.steps.rbegin(), files.steps.rend(), has_loss);
  if (first != files.steps.end()) {
    run.first_loss = first->loss;
    run.last_loss = last->loss;
  }
  for (const auto& eval : files.evals) {
    auto found = std::find_if(run.validation.begin(), run.validation.end(),
                              [&](const auto& v) { return v.set == eval.set && v.is_loss == eval.is_loss; });
    if (found == run.validation.end())
      found = run.validation.insert(found, {eval.set, eval.is_loss, eval.higher_is_better});
    found->last = eval.value;
    // NaN before the first value
    const double gain = eval.higher_is_better ? eval.value - found->best : found->best - eval.value;
    if (std::isnan(eval.value) || gain <= 0) continue;
    found->best = eval.value;
    found->best_step = eval.step;
  }
  run.files = std::move(files);
  count_speed(run);
  return run;
}

/// True if one is a path from the root that ends with the other: a restart makes the paths of its run absolute.
bool are_one_path(const std::string& a, const std::string& b) {
  const auto ends_with = [](const std::string& whole, const std::string& part) {
    const auto plain = std::filesystem::path(part).lexically_normal().string();
    return whole.starts_with('/') && !plain.starts_with('/') && !plain.starts_with("..") && plain != "." &&
           std::filesystem::path(whole).lexically_normal().string().ends_with("/" + plain);
  };
  return ends_with(a, b) || ends_with(b, a);
}

/// Compares settings; a flag that is not given equals false.
bool alike(const std::string& a, const std::string& b) {
  return a == b || (a == "-" && b == "false") || (a == "false" && b == "-") || are_one_path(a, b);
}

/// \return the checkpoint of another run that this run started from; "-" if it started from its own or none
std::string origin_of(const RunFiles& run) {
  const auto restart = setting_of(run, "restart-checkpoint-file");
  return restart == "latest" ? "-" : restart;
}

bool same_settings(const RunFiles& a, const RunFiles& b) {
  const auto differs = [](const RunFiles& x, const RunFiles& y) {
    return std::any_of(x.settings.begin(), x.settings.end(), [&](const auto& setting) {
      return is_about_training(setting.first) && !alike(setting_of(x, setting.first), setting_of(y, setting.first));
    });
  };
  return !a.settings.empty() && origin_of(a) == origin_of(b) && !differs(a, b) && !differs(b, a);
}

/// Adds a run with the same settings to a pool: steps are appended, memory figures are maxima over all runs.
void join(RunSummary& run, RunSummary other) {
  if (run.runs == 1 && run.files.state != RunStatus::done) run.unfinished = {run};
  ++run.runs;
  run.speed_steps.insert(run.speed_steps.end(), other.speed_steps.begin(), other.speed_steps.end());
  auto& a = run.files;
  const auto& b = other.files;
  const auto larger = [](double& x, double y) {
    if (!(x >= y) && !std::isnan(y)) x = y;
  };
  larger(a.peak_bytes, b.peak_bytes);
  larger(a.resident_bytes, b.resident_bytes);
  larger(a.alloc_retries, b.alloc_retries);
  a.saves.insert(a.saves.end(), b.saves.begin(), b.saves.end());
  a.bad_lines += b.bad_lines;
  if (b.state != RunStatus::done) {
    a.state = b.state;
    run.unfinished.push_back(std::move(other));
  }
  count_speed(run);
}

/// Orders settings by importance; the others follow by name.
std::size_t importance(const std::string& name) {
  static constexpr std::array<std::string_view, 16> first{
      "lr",       "model",     "num-layers", "embed-size", "num-heads", "batch-size",   "total-batch-size",
      "seq-len",  "max-steps", "max-epochs", "optimizer",  "lora-rank", "weight-decay", "precision",
      "sharding", "ranks"};
  return to_index(std::ranges::find(first, name) - first.begin());
}

std::vector<std::string> differing_settings(const std::vector<RunSummary>& runs) {
  std::set<std::string> names;
  for (const auto& run : runs) {
    for (const auto& [name, value] : run.files.settings) names.insert(name);
  }
  std::vector<std::string> differ;
  for (const auto& name : names) {
    if (!is_about_training(name)) continue;
    const auto first = setting_of(runs.front().files, name);
    const bool same = std::all_of(runs.begin(), runs.end(), [&](const RunSummary& run) {
      return run.files.settings.empty() || alike(setting_of(run.files, name), first);
    });
    if (!same) differ.push_back(name);
  }
  // If both batch-size settings differ, showing the shorter name is enough.
  if (std::ranges::find(differ, "batch-size") != differ.end()) std::erase(differ, "total-batch-size");
  std::ranges::stable_sort(differ, {}, importance);
  return differ;
}

/// Labels runs by their differing settings if these are distinct, else by their names, else by their folders.
void label_runs(RunComparison& comparison) {
  auto& runs = comparison.runs;
  const auto all_different = [&] {
    std::set<std::string> seen;
    for (const auto& run : runs) seen.insert(run.label);
    return seen.size() == runs.size();
  };
  for (auto& run : runs) run.label = run.files.name;
  if (!all_different()) {
    for (auto& run : runs) run.label = run.files.directory.lexically_normal().string();
  }
}

}  // namespace

bool is_about_training(const std::string& setting) {
  static const std::set<std::string> others{"run-name",
                                            "out-dir",
                                            "log-every",
                                            "quiet",
                                            "json",
                                            "trace",
                                            "init-timeout",
                                            "time-limit",
                                            "takeover-after",
                                            "no-tensorboard",
                                            "collective-timeout",
                                            "no-save",
                                            "save-every",
                                            "keep-last",
                                            "prompt",
                                            "num-tokens",
                                            "save-interval-minutes",
                                            "restart-checkpoint-file",
                                            "save-final-full",
                                            "save-final-hf",
                                            "save-final-adapter",
                                            "overwrite",
                                            "final",
                                            "keep-best",
                                            "val-chess",
                                            "val-chess-games",
                                            "val-chess-positions",
                                            "val-tasks",
                                            "val-tasks-every",
                                            "val-limit",
                                            "val-num-fewshot",
                                            "val-apply-chat-template",
                                            "sample-prompt",
                                            "sample-chat",
                                            "sample-tokens",
                                            "gradient-accumulation-steps",
                                            "tokens-per-row"};
  return !others.contains(setting);
}

Spread spread_of(std::vector<double> sample) {
  Spread spread;
  spread.count = std::ssize(sample);
  if (sample.empty()) return spread;
  std::sort(sample.begin(), sample.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(sample.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const auto above = std::min(below + 1, sample.size() - 1);
    return sample[below] + (place - static_cast<double>(below)) * (sample[above] - sample[below]);
  };
  spread.lowest = sample.front();
  spread.low_quartile = at(0.25);
  spread.median = at(0.5);
  spread.high_quartile = at(0.75);
  spread.highest = sample.back();
  return spread;
}

std::vector<SpeedSample> steps_for_speed(const std::vector<StepLine>& steps) {
  const auto those = [&](auto counts) {
    std::vector<SpeedSample> found;
    found.reserve(steps.size());
    for (const auto& step : steps) {
      if (step.seconds > 0 && counts(step))
        found.push_back({step.tokens_per_second, step.seconds, step.received_bytes, step.mfu});
    }
    return found;
  };
  auto found = those([](const StepLine& s) { return s.job_step > 2 && !s.saving && !s.after_a_break; });
  if (found.size() < kFewestSteps) found = those([](const StepLine& s) { return s.job_step > 1; });
  if (found.empty()) found = those([](const StepLine&) { return true; });
  return found;
}

std::string setting_of(const RunFiles& run, const std::string& name) {
  const auto found = run.settings.find(name);
  if (found != run.settings.end()) {
    if (name == "activation-checkpointing" && (found->second.empty() || found->second == "true")) return "all";
    return found->second;
  }
  if (run.settings.empty()) return kUnknownSetting;
  return name == "activation-checkpointing" ? "none" : name == "forward-prefetch" ? "auto" : "-";
}

RunComparison compare_runs(const std::vector<std::filesystem::path>& directories, bool pool) {
  std::vector<RunFiles> runs;
  for (const auto& directory : directories) runs.push_back(read_run(directory));
  return compare_runs(std::move(runs), pool);
}

RunComparison compare_runs(std::vector<RunFiles> all, bool pool) {
  RunComparison comparison;
  auto& runs = comparison.runs;
  for (auto& files : all) {
    auto run = summarize(std::move(files));
    const auto same = std::find_if(runs.begin(), runs.end(), [&](const RunSummary& other) {
      return pool && same_settings(other.files, run.files);
    });
    if (same == runs.end()) {
      runs.push_back(std::move(run));
    } else {
      join(*same, std::move(run));
    }
  }
  if (runs.empty()) return comparison;
  comparison.differ = differing_settings(runs);
  comparison.in_order.resize(runs.size());
  std::iota(comparison.in_order.begin(), comparison.in_order.end(), std::size_t{0});
  label_runs(comparison);
  return comparison;
}

}  // namespace fsdp
