#include "apps/finetune/validation/validation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/eval/result.hpp"
#include "apps/finetune/validation/validation_games.hpp"
#include "apps/finetune/validation/validation_samples.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/median.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/objectives/preferences.hpp"
#include "lib/training/state/best.hpp"

namespace fsdp::detail {
namespace {

/// Evaluates one set and takes rank 0's loss on every rank: sums may differ in the last bits between ranks, but all
/// ranks must decide alike.
/// \return nothing when stopped
std::optional<Evaluation> evaluate_set(ModelRuntime& runtime, const RunSetup& setup, const ValidationData& set,
                                       const std::function<bool()>& stopped) {
  auto result =
      evaluate_rows(runtime, *plan_objective(setup.options), set.rows, setup.batches.micro_batch_size, stopped);
  if (!result) return result;
  std::vector<double*> figures{&result->loss, &result->perplexity};
  for (auto& mean : result->means) figures.push_back(&mean.value);
  for (auto* figure : figures) {
    runtime.world().broadcast(std::as_writable_bytes(std::span(figure, 1)), 0);
    if (std::isnan(*figure)) *figure = std::nan("");  // without a sign
  }
  return result;
}

std::string eval_line(std::int64_t step, const ValidationData& set, const Evaluation& result) {
  std::string figures = fmt::format("loss {:.4f}   ", result.loss);
  if (result.means.empty()) figures += fmt::format("perplexity {:.1f}   ", result.perplexity);
  for (const auto& mean : result.means) figures += fmt::format("{} {:.4f}   ", mean.name, mean.value);
  return fmt::format("eval   {:>6}   {}{}{}{} tokens in {:.1f} s", step, set.name, set.name.empty() ? "" : "   ",
                     figures, format_count(result.tokens), result.seconds);
}

/// Returns the name of the deciding set in the form that ValidationState keeps.
std::string deciding_set(const RunSetup& setup) {
  const auto& [metric, set, higher_is_better] = setup.deciding;
  if (is_task_metric(metric)) return setup.tasks->questions.identity();
  if (!setup.deciding.is_of_set()) return setup.games->identity;
  return set < setup.validation.size() ? setup.validation[set].name : "";
}

/// The verdict on a validation, for its line in the log.
std::string verdict_words(const RunLife& life, std::int64_t patience) {
  const auto& verdict = life.verdict;
  const auto without = life.validation.without_improvement;
  std::string words;
  if (verdict.began_anew) words += "   by something else than before: the best is looked for anew";
  if (verdict.is_best) words += "   best";
  if (without > 0) words += fmt::format("   {} of {} without improvement", without, patience);
  return words;
}

/// Chooses the metric of --keep-best. "loss", "perplexity" and "bits_per_byte" all mean the first set's loss, unless a
/// set has that name: on the same tokens, the three rise and fall together.
DecidingMetric deciding_metric(const TrainOptions& options) {
  const auto& metric = options.validation.keep_best;
  const auto& sets = options.val_sets;
  if (!options.validation.keeps_best()) return {};
  const auto named =
      std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return !set.name.empty() && set.name == metric; });
  if (named != sets.end()) return {"loss", to_index(named - sets.begin())};
  if (metric == "loss" || metric == "perplexity" || metric == "bits_per_byte") return {};
  auto means = plan_objective(options)->sums();
  if (options.objective.head == HeadKind::classify) means.emplace_back(kAccuracySum);
  std::erase_if(means, [](const auto& name) {
    return name.find("rejected") != std::string::npos || name == kEntropy || name == kDivergence;
  });
  if (std::ranges::count(means, metric) > 0) return {metric, 0, true};
  if (is_chess_metric(metric)) return {metric, 0, true};
  if (is_task_metric(metric)) return {metric, 0, true};  // load_validation_tasks() knows better
  std::string names;
  for (const auto& set : sets) {
    if (!set.name.empty()) names += ", " + set.name;
  }
  throw UsageError(fmt::format(
      "--keep-best {}: choose loss, perplexity, bits_per_byte{}{}, or of --val-chess chess_accuracy, chess_legal, "
      "chess_result, or of --val-tasks TASK.METRIC",
      metric, names.empty() ? "" : fmt::format(" (of the first set), the name of a set: {}", names.substr(2)),
      means.empty() ? "" : fmt::format(", or of this objective {}", fmt::join(means, ", "))));
}

}  // namespace

std::optional<ValidationResult> validate(ModelRuntime& runtime, const RunSetup& setup, const ValidationParts& parts,
                                         const Logger& log, Progress* progress, std::int64_t step,
                                         const std::function<bool()>& stopped) {
  ValidationResult result;
  for (const auto& set : setup.validation) {
    if (!parts.data) break;
    const auto evaluation = evaluate_set(runtime, setup, set, stopped);
    if (!evaluation) return std::nullopt;
    result.sets.push_back(*evaluation);
    if (progress != nullptr) progress->keep(eval_line(step, set, *evaluation));
  }
  if (parts.data && setup.games) {
    result.games = play_games(runtime, setup, log, stopped);
    if (!result.games) return std::nullopt;
    if (progress != nullptr) progress->keep(games_line(step, *result.games));
  }
  if (parts.tasks && setup.tasks) {
    result.tasks = ask_tasks(runtime, setup, stopped);
    if (!result.tasks) return std::nullopt;
    if (progress != nullptr) {
      for (const auto& line : task_lines(step, *result.tasks, "", "")) progress->keep(line);
    }
  }
  return result;
}

void report_validation(const RunSetup& setup, const std::optional<ValidationResult>& result, nlohmann::json& report) {
  if (result && result->games) add_to_json(*result->games, report);
  if (result && result->tasks) add_figures(*result->tasks, report);
  if (setup.validation.empty()) return;
  report["val_loss"] = result && !result->sets.empty() ? result->sets.at(setup.deciding.set).loss : std::nan("");
  for (std::size_t i = 0; result && i < result->sets.size(); ++i) {
    const auto& name = setup.validation[i].name;
    if (!name.empty()) report["val_losses"][name] = result->sets[i].loss;
  }
}

ExitCode report_evaluation(const RunSetup& setup, const std::optional<ValidationResult>& result,
                           nlohmann::json& report) {
  report["stopped_early"] = !result;
  if (!result) return ExitCode::stopped_early;
  report_validation(setup, result, report);
  if (!result->sets.empty()) report["perplexity"] = result->sets.at(setup.deciding.set).perplexity;
  return ExitCode::ok;
}

bool Validation::run(const std::function<void()>& poll) {
  const auto start = std::chrono::steady_clock::now();
  auto result = compute(poll);
  if (!result) {
    context_.progress.keep(
        fmt::format("eval   {:>6}   the job is to end: left to the next start", context_.trainer.state().step));
    return false;
  }
  result_ = std::move(result);
  if (!newest_) newest_.emplace();
  if (!result_->sets.empty()) newest_->sets = result_->sets;
  if (result_->games) newest_->games = result_->games;
  if (result_->tasks) newest_->tasks = result_->tasks;
  clock_.after_validation(seconds_since(start));
  return true;
}

/// Computes samples and all sets before any result is reported, so that a cut validation leaves no partial results.
/// Samples come first; samples that are already written are not written again by the next job.
/// \return nothing when the job must end
std::optional<ValidationResult> Validation::compute(const std::function<void()>& poll) {
  if (any_rank(context_.world, !clock_.has_time_to_validate())) return std::nullopt;
  memory_.disturb();
  const auto stopped = [&] {
    poll();
    return any_rank(context_.world, clock_.must_end());
  };
  const auto parts = parts_due();
  const bool samples = parts.data && !context_.setup.options.validation.sample_prompts.empty() && record_.is_open();
  if (samples && !write_samples(context_, record_, stopped)) return std::nullopt;
  return validate(context_.runtime, context_.setup, parts, context_.log, nullptr, context_.trainer.state().step,
                  stopped);
}

/// Where tasks have an interval of their own, a validation that only one of the intervals asks for has that one's part.
/// The last one of the run has all.
ValidationParts Validation::parts_due() const {
  const auto& setup = context_.setup;
  const auto& state = context_.trainer.state();
  if (setup.tasks_every == 0 || state.step >= setup.total_steps || state.samples >= setup.total_samples) return {};
  const bool data = falls_on(state.step, setup.eval_every), tasks = falls_on(state.step, setup.tasks_every);
  return data || tasks ? ValidationParts{data, tasks} : ValidationParts{};
}

std::optional<DecidingValue> Validation::deciding_value() const {
  if (!result_) return std::nullopt;
  const auto& [metric, set, higher_is_better] = context_.setup.deciding;
  DecidingValue value{.step = context_.trainer.state().step, .set = deciding_set(context_.setup), .metric = metric};
  if (context_.setup.deciding.is_of_set()) {
    if (set >= result_->sets.size()) return std::nullopt;
    value.count = result_->sets[set].tokens;
    value.value = result_->sets[set].loss;
    if (metric != "loss") {
      const auto& means = result_->sets[set].means;
      const auto found = std::ranges::find(means, metric, &Evaluation::Mean::name);
      if (found == means.end()) return std::nullopt;
      value.value = found->value;
    }
  } else if (is_task_metric(metric)) {
    const auto* figure = result_->tasks ? find_figure(*result_->tasks, metric) : nullptr;
    if (figure == nullptr) return std::nullopt;
    value.value = figure->value;
    value.count = figure->count;
  } else {
    if (!result_->games) return std::nullopt;
    const auto score = game_score(*result_->games, metric);
    value.value = score.value;
    value.count = score.count;
  }
  return value;
}

/// Losses of earlier runs at this step; empty where they are too few to compare with.
std::vector<double> Validation::losses_to_beat() const {
  constexpr std::size_t kFewest = 2;
  const auto& all = context_.setup.options.validation.losses_to_beat;
  const auto here = all.find(context_.trainer.state().step);
  return here == all.end() || here->second.size() < kFewest ? std::vector<double>() : here->second;
}

bool Validation::falls_behind() const {
  const auto others = losses_to_beat();
  if (others.empty() || !result_ || result_->sets.empty()) return false;
  return !(result_->sets.at(context_.setup.deciding.set).loss <= median(others));
}

std::string Validation::why_behind() const {
  const auto others = losses_to_beat();
  return fmt::format("its validation loss {:.4f} is above {:.4f}, the median of {} of the sweep at this step",
                     result_->sets.at(context_.setup.deciding.set).loss, median(others),
                     format_count_of(std::ssize(others), "earlier run"));
}

void Validation::tell(const RunLife& life) {
  if (!result_) return;
  const auto verdict = verdict_words(life, context_.setup.options.validation.patience);
  const auto& sets = context_.setup.validation;
  const auto& deciding = context_.setup.deciding;
  for (std::size_t i = 0; i < result_->sets.size(); ++i)
    tell_set(sets[i], result_->sets[i], deciding.is_of_set() && i == deciding.set ? verdict : std::string());
  const auto step = context_.trainer.state().step;
  if (result_->games) {
    const bool decide = is_chess_metric(deciding.metric);
    context_.progress.keep(games_line(step, *result_->games) + (decide ? verdict : std::string()));
    record_.add_metrics(games_record(step, *result_->games));
  }
  if (!result_->tasks) return;
  for (const auto& line : task_lines(step, *result_->tasks, deciding.metric, verdict)) context_.progress.keep(line);
  record_.add_metrics(tasks_record(step, *result_->tasks));
}

void Validation::tell_set(const ValidationData& set, const Evaluation& result, const std::string& verdict) {
  const auto step = context_.trainer.state().step;
  context_.progress.keep(eval_line(step, set, result) + verdict);
  nlohmann::json record{
      {"step", step}, {"val_loss", result.loss}, {"val_tokens", result.tokens}, {"eval_seconds", result.seconds}};
  if (result.means.empty()) record["val_perplexity"] = result.perplexity;
  for (const auto& mean : result.means) record[kValMeansKey][mean.name] = mean.value;
  if (!set.name.empty()) record["val_set"] = set.name;
  record_.add_metrics(record);
}

double Validation::probe_loss() {
  memory_.disturb();
  return context_.trainer.probe_loss();
}

ValidationRules validation_rules(const RunSetup& setup) {
  const auto& asked = setup.options.validation;
  return {asked.keeps_best(), asked.patience, asked.min_delta, setup.deciding.higher_is_better};
}

bool counts_for_another(const RunSetup& setup, const ValidationState& state) {
  if (!setup.restart || state.step < 0) return false;
  if (!path_below(setup.restart->candidates.front(), setup.checkpoints())) return true;
  if (state.metric != setup.deciding.metric || state.set != deciding_set(setup)) return true;
  const auto data = [](const nlohmann::json& options) {
    const auto text = [&](const char* name) { return options.value(name, std::string()); };
    return text("val-split").empty() ? text("val-data") : text("val-split") + " of " + text("train-data");
  };
  return setup.deciding.is_of_set() && data(setup.restart->manifest.options) != data(setup.saved_options);
}

std::string why_out_of_patience(const RunSetup& setup, const ValidationState& state, const ValidationRules& rules) {
  const bool names_a_set = setup.deciding.is_of_set() && !state.set.empty();
  return fmt::format("{} in a row had no {}{}{} {} {:.4f}{}", format_count_of(state.without_improvement, "validation"),
                     state.metric, !names_a_set ? "" : " of ", !names_a_set ? "" : state.set,
                     rules.higher_is_better ? "above" : "below", state.patience_value,
                     rules.min_delta > 0 ? fmt::format(" by more than {:g}", rules.min_delta) : std::string());
}

DecidingMetric check_validation_options(const TrainOptions& options) {
  const auto& v = options.validation;
  const auto deciding = deciding_metric(options);
  if (v.min_delta > 0 && v.patience == 0) throw UsageError("--min-delta needs --patience");
  if (v.sample_tokens < 1)
    throw UsageError(fmt::format("--sample-tokens is {}, it must be at least 1", v.sample_tokens));
  for (const auto& set : options.val_sets) {
    if (set.name == "none" || set.name == "true" || set.name == "false")
      throw UsageError(fmt::format("--val-data: {} is no name of a set, since --keep-best {} means another thing",
                                   set.name, set.name));
    if (is_chess_metric(set.name))
      throw UsageError(
          fmt::format("--val-data: {} is no name of a set, since it is a metric of --val-chess", set.name));
  }
  for (const auto& [given, option] :
       {std::pair(v.keeps_best(), "--keep-best"), std::pair(v.patience > 0, "--patience")}) {
    if (!given || !deciding.is_of_set() || !options.val_sets.empty()) continue;
    throw UsageError(fmt::format("{} needs --val-data to go by{}", option,
                                 !v.tasks.names.empty() ? ", or --keep-best TASK.METRIC"
                                 : v.games.data.empty() ? ""
                                                        : ", or --keep-best chess_legal or chess_accuracy"));
  }
  if (v.patience > 0 && options.eval_every.never() && v.tasks.every.never())
    throw UsageError("--patience needs --eval-every: without it there is a validation at the end only");
  if (v.ends_with_best && !v.keeps_best()) throw UsageError("--final best needs --keep-best");
  if (is_task_metric(deciding.metric) && v.tasks.names.empty())
    throw UsageError(fmt::format("--keep-best {} needs --val-tasks", deciding.metric));
  if (is_chess_metric(deciding.metric) && v.games.data.empty())
    throw UsageError(fmt::format("--keep-best {} needs --val-chess", deciding.metric));
  if (deciding.metric == "chess_legal" && v.games.positions == 0)
    throw UsageError("--keep-best chess_legal needs --val-chess-positions");
  return deciding;
}

}  // namespace fsdp::detail
