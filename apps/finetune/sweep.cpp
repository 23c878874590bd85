#include "apps/finetune/sweep.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/common/torch_main.hpp"
#include "apps/finetune/finetune_job.hpp"
#include "lib/base/elapsed.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/base/stop_signal.hpp"
#include "lib/base/text_format.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/reports/runs/run_summary.hpp"
#include "lib/training/run/restart_command.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

/// A run before the job, as its files tell.
enum class Standing {
  open,      ///< not begun, or stopped in order
  broken,    ///< killed, or failed
  finished,  ///< done or pruned
};

class Sweep {
 public:
  Sweep(const SweepPlan& plan, ProcessGroup& world, const Logger& log, const std::function<bool()>& failed_alike)
      : plan_(plan), world_(world), log_(log), failed_alike_(failed_alike) {
    const auto first = plan.parse(plan.runs.front());
    dry_run_ = first->arguments.options.dry_run;
    folder_ = fs::path(first->arguments.options.out_dir) / plan.name;
    for (const auto& run : plan.runs) folders_.push_back(run_directory(plan.parse(run)->arguments.options));
    standings_ = look();
  }

  ExitCode run(nlohmann::json& report);

 private:
  std::vector<Standing> look() const;
  void note_options() const;
  ExitCode check(std::size_t index) const;
  bool has_checkpoint(std::size_t index) const;
  std::unique_ptr<ParsedRun> parse(std::size_t index) const;
  void tell(std::size_t index, const std::string& what) const {
    log_.info(fmt::format("sweep     run {} of {}   {}{}{}", index + 1, plan_.runs.size(), plan_.runs[index].label,
                          what.empty() ? "" : "   ", what));
  }
  std::vector<std::size_t> order() const;
  ExitCode train(std::size_t index);
  std::map<std::int64_t, std::vector<double>> losses_to_beat(std::size_t index) const;
  bool signalled() const { return any_rank(world_, signal_.received() != 0); }
  ExitCode stop(nlohmann::json& report) const;
  void compare(nlohmann::json& report) const;
  std::string advice(std::size_t index) const;

  const SweepPlan& plan_;
  ProcessGroup& world_;
  const Logger& log_;
  const std::function<bool()>& failed_alike_;
  const StopSignal signal_;  ///< of the runs, and of the time between them
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool dry_run_ = false;
  fs::path folder_;                ///< of the sweep
  std::vector<fs::path> folders_;  ///< of its runs
  std::vector<Standing> standings_;
  std::map<std::size_t, std::string> failures_;  ///< of this job: messages by run
};

Standing standing_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return Standing::open;
  switch (read_run(folder).state) {
    case RunStatus::done:
    case RunStatus::pruned:
      return Standing::finished;
    case RunStatus::ended:
    case RunStatus::failed:
    case RunStatus::unknown:  // it has not come to its first step
      return Standing::broken;
    default:
      return Standing::open;
  }
}

/// Rank 0 looks, because other hosts may see a shared file system with a delay.
std::vector<Standing> Sweep::look() const {
  const auto text = text_of_root(world_, [&] {
    if (std::error_code error; fs::exists(folder_ / "metrics.jsonl", error) || fs::exists(folder_ / "job.json", error))
      throw UsageError(
          fmt::format("{} is a run, in which a sweep would lie: give another --run-name", folder_.string()));
    std::string found;
    for (const auto& folder : folders_) found += static_cast<char>('0' + static_cast<int>(standing_of(folder)));
    return found;
  });
  std::vector<Standing> standings;
  for (const char c : text) standings.push_back(static_cast<Standing>(c - '0'));
  return standings;
}

/// Writes sweep.json, which has the options that all runs share. \throws UsageError where it has others: runs of two
/// commands do not compare
void Sweep::note_options() const {
  const auto parsed = plan_.parse(plan_.runs.front());
  nlohmann::json options = nlohmann::json::object();
  for (const auto* option : parsed->table.get_options()) {
    const auto kind = parsed->table.facts(option).at_restart;
    const bool decides = kind == AtRestart::saved || kind == AtRestart::checkpoint;
    if (!decides || option->count() == 0 || !option->get_configurable() || option->get_lnames().empty()) continue;
    const auto& name = option->get_lnames().front();
    const auto varies = [&](const std::string& word) {
      return word == "--" + name || word.starts_with("--" + name + "=");
    };
    const auto& words = plan_.runs.front().words;
    if (!is_about_training(name) || name == "dry-run" || std::any_of(words.begin(), words.end(), varies)) continue;
    options[name] = fmt::format("{}", fmt::join(option->reduced_results(), " "));
  }
  run_agreed(world_, [&] {
    if (world_.rank() != 0) return;
    const auto file = folder_ / "sweep.json";
    std::error_code error;
    if (fs::exists(file, error)) {
      const auto old = parse_json(read_text(File::open_read(file), 1 << 20), file.string());
      const auto before = old.value("options", nlohmann::json::object());
      for (const auto& all : {before, options}) {
        for (const auto& [name, value] : all.items()) {
          const auto words = [&](const nlohmann::json& in) {
            return in.contains(name) ? fmt::format("--{} {}", name, in[name].get<std::string>()) : "no --" + name;
          };
          if (before.value(name, nlohmann::json()) != options.value(name, nlohmann::json()))
            throw UsageError(
                fmt::format("{}: this sweep was begun with {}, and has {} now, so its runs would not compare: "
                            "give the same options, or another --run-name",
                            file.string(), words(before), words(options)));
        }
      }
      return;
    }
    make_directories(folder_);
    const nlohmann::json note{{"format", "fsdp-sweep"}, {"program_version", FSDP_VERSION}, {"options", options}};
    replace_file(file, printable_json(note, 1) + "\n");
  });
}

bool Sweep::has_checkpoint(std::size_t index) const {
  const bool found = world_.rank() == 0 && !checkpoints_of_run(folders_[index] / "checkpoints").empty();
  return any_rank(world_, found);
}

/// The command line of a run, which goes on from its own newest checkpoint if it has one.
std::unique_ptr<ParsedRun> Sweep::parse(std::size_t index) const {
  auto parsed = plan_.parse(plan_.runs[index]);
  if (has_checkpoint(index)) parsed->table.set("--restart-checkpoint-file", "latest");
  return parsed;
}

/// Does what --dry-run does; its lines are printed for --dry-run only. \return answer_no when the run does not fit
/// \throws Error subclasses that name the run
ExitCode Sweep::check(std::size_t index) const {
  const auto parsed = parse(index);
  parsed->arguments.options.dry_run = true;
  nlohmann::json unused;
  const Logger quiet(world_.rank(), LogLevel::error);
  try {
    JobEvents none("");
    return with_torch_errors([&] {
      return run_finetune_job(parsed->table, parsed->arguments, none, world_, dry_run_ ? log_ : quiet, unused);
    });
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("run {} of the sweep: {}", plan_.runs[index].label, error.what()));
  }
}

/// Runs that were killed or failed before come last: they may do so again, and the others are to have their turn.
std::vector<std::size_t> Sweep::order() const {
  std::vector<std::size_t> to_do;
  for (const auto standing : {Standing::open, Standing::broken}) {
    for (std::size_t i = 0; i < standings_.size(); ++i)
      if (standings_[i] == standing) to_do.push_back(i);
  }
  return to_do;
}

ExitCode Sweep::run(nlohmann::json& report) {
  // Checks are silent, and the first one encodes texts, which may take minutes.
  if (!dry_run_)
    log_.info(fmt::format("sweep     {}, checked first",
                          format_count_of(static_cast<std::int64_t>(plan_.runs.size()), "run")));
  auto fit = ExitCode::ok;
  for (std::size_t i = 0; i < standings_.size(); ++i) {
    const bool finished = standings_[i] == Standing::finished;
    if (dry_run_ || finished) tell(i, finished ? "is done" : "");
    if (signalled()) return stop(report);
    // A run that has a checkpoint was checked when it began.
    if (!dry_run_ && (finished || has_checkpoint(i))) continue;
    if (check(i) == ExitCode::answer_no) fit = ExitCode::answer_no;
  }
  if (dry_run_) {
    report["dry_run"] = true;
    report["fits"] = fit == ExitCode::ok;
    for (const auto& run : plan_.runs) report["runs"].push_back(run.label);
    return fit;
  }
  note_options();
  for (const auto i : order()) {
    if (signalled() || train(i) == ExitCode::stopped_early) return stop(report);
  }
  if (world_.rank() == 0) compare(report);
  return failures_.empty() ? ExitCode::ok : ExitCode::failed;
}

ExitCode Sweep::train(std::size_t index) {
  std::string failure;
  std::exception_ptr error;
  try {
    const auto parsed = parse(index);
    auto& options = parsed->arguments.options;
    tell(index, options.restart_checkpoint == "latest" ? "goes on" : "");
    if (plan_.prunes) options.validation.losses_to_beat = losses_to_beat(index);
    // The limit is that of the whole job.
    if (options.time_limit_seconds > 0)
      options.time_limit_seconds = std::max(1e-3, options.time_limit_seconds - seconds_since(begin_));
    nlohmann::json unused;
    JobEvents none("");
    return with_torch_errors(
        [&] { return run_finetune_job(parsed->table, parsed->arguments, none, world_, log_, unused); });
  } catch (const Error& failed) {
    if (failed.code() == ExitCode::stopped_early) throw;
    failure = failed.what();
    error = std::current_exception();
  } catch (const std::exception& failed) {
    failure = failed.what();
    error = std::current_exception();
  }
  if (!failed_alike_()) std::rethrow_exception(error);
  if (world_.rank() == 0) log_.error(fmt::format("run {} of the sweep: {}", plan_.runs[index].label, failure));
  failures_[index] = failure;
  return ExitCode::failed;
}

/// By step, the losses of the other runs that have been made, in the validation that decides.
std::map<std::int64_t, std::vector<double>> Sweep::losses_to_beat(std::size_t index) const {
  const auto text = text_of_root(world_, [&] {
    std::map<std::int64_t, std::vector<double>> losses;
    for (std::size_t i = 0; i < folders_.size(); ++i) {
      std::error_code error;
      if (i == index || !fs::exists(folders_[i] / "metrics.jsonl", error)) continue;
      const auto comparison = compare_runs(std::vector<fs::path>{folders_[i]}, false);
      const auto& other = comparison.runs.front();
      const auto set = deciding_loss(other).set;
      for (const auto& eval : other.files.evals) {
        if (!eval.is_loss || eval.set != set) continue;
        // A loss that is no number is worse than all others.
        losses[eval.step].push_back(std::isfinite(eval.value) ? eval.value : std::numeric_limits<double>::max());
      }
    }
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [step, values] : losses) all.push_back({step, values});
    return all.dump();
  });
  std::map<std::int64_t, std::vector<double>> losses;
  for (const auto& entry : nlohmann::json::parse(text))
    losses[entry[0].get<std::int64_t>()] = entry[1].get<std::vector<double>>();
  return losses;
}

ExitCode Sweep::stop(nlohmann::json& report) const {
  const auto now = look();
  const auto done = std::count(now.begin(), now.end(), Standing::finished);
  log_.info(fmt::format("sweep     stopped   {} of {} done; the same command goes on with it", done,
                        format_count_of(static_cast<std::int64_t>(now.size()), "run")));
  report["stopped_early"] = true;
  report["done"] = done;
  report["directory"] = folder_.string();
  return ExitCode::stopped_early;
}

/// The command that trains a run on.
std::string Sweep::advice(std::size_t index) const {
  const auto parsed = plan_.parse(plan_.runs[index]);
  auto& options = parsed->arguments.options;
  options.repeated = collect_repeated_words(parsed->table);
  if (checkpoints_of_run(folders_[index] / "checkpoints").empty())
    return fmt::format("it has no checkpoint: train it again with {}", fmt::join(plan_.runs[index].words, " "));
  return fmt::format("{} {} N", detail::restart_command(options, world_.size()),
                     options.max_steps > 0 ? "--max-steps" : "--max-epochs");
}

void Sweep::compare(nlohmann::json& report) const {
  std::vector<fs::path> there;
  for (const auto& folder : folders_) {
    std::error_code error;
    if (fs::exists(folder / "metrics.jsonl", error)) there.push_back(folder);
  }
  const auto comparison = compare_runs(there, false);
  report = run_comparison_to_json(comparison);
  report["directory"] = folder_.string();
  report["failures"] = nlohmann::json::object();
  for (const auto& [index, failure] : failures_) report["failures"][plan_.runs[index].label] = failure;
  report["stopped_early"] = false;
  if (!there.empty()) {
    std::istringstream lines(run_comparison_to_text(comparison));
    for (std::string line; std::getline(lines, line);) log_.info(line);
  }
  for (const auto& [index, failure] : failures_)
    log_.warning(fmt::format("run {} failed: {}", plan_.runs[index].label, failure));
  const auto best = best_run(comparison);
  if (!best) return log_.info("winner    none: no run has a loss");
  const auto index = static_cast<std::size_t>(std::find(folders_.begin(), folders_.end(), best->run->files.directory) -
                                              folders_.begin());
  const auto& label = plan_.runs[index].label;
  if (!best->by_validation) log_.info("No run was validated. " + best_run_sentence(*best));
  const auto command = advice(index);
  log_.info(fmt::format("winner    {}   to train it on: {}", label, command));
  report["winner"] = {
      {"run", label},
      {"directory", folders_[index].string()},
      {"by", best->by_validation ? "validation" : "training"},
      {"loss", best->loss},
      {"step", best->step},
      {"next", best->next == nullptr ? nlohmann::json() : nlohmann::json(best->next->label)},
      {"distance", best->next == nullptr ? nlohmann::json() : nlohmann::json(best->next_loss - best->loss)},
      {"command", command}};
}

}  // namespace

ExitCode run_sweep(const SweepPlan& plan, ProcessGroup& world, const Logger& log,
                   const std::function<bool()>& failed_alike, JobEvents& events, nlohmann::json& report) {
  auto whole = plan.parse(plan.runs.front())->arguments.options;
  whole.run_name = plan.name;
  events.set_run(world, whole);
  events.start(0, 0, log);
  return Sweep(plan, world, log, failed_alike).run(report);
}

}  // namespace fsdp
