#include "apps/finetune/sweep/sweep.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "apps/common/remedies.hpp"
#include "apps/common/torch_main.hpp"
#include "apps/finetune/finetune_job.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
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
  std::optional<std::int64_t> own_steps(std::size_t index, const RunFiles& files) const;
  std::vector<RunFiles> runs_of_sweep(nlohmann::json& trained_on) const;
  /// A command, and what it does.
  struct Advice {
    std::string purpose, command;
  };
  Advice advice(std::size_t index, const RunFiles& files) const;
  std::vector<std::string> edges(std::size_t index) const;

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
  const Logger quiet(world_.rank(), LogLevel::error, words_of_advice);
  try {
    JobEvents none("");
    return with_torch_errors([&] {
      return run_finetune_job(parsed->table, parsed->arguments, none, world_, dry_run_ ? log_ : quiet, unused);
    });
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("run {} of the sweep: {}", plan_.runs[index].label, error.what()),
                error.advice());
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
  if (!dry_run_) log_.info(fmt::format("sweep     {}, checked first", format_count_of(std::ssize(plan_.runs), "run")));
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
    failure = told(failed);
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

/// The losses of the other runs so far in the validation that decides, by step.
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
                        format_count_of(std::ssize(now), "run")));
  report["stopped_early"] = true;
  report["done"] = done;
  report["directory"] = folder_.string();
  return ExitCode::stopped_early;
}

/// The last step that the sweep makes a run train to; nothing where its files do not tell.
std::optional<std::int64_t> Sweep::own_steps(std::size_t index, const RunFiles& files) const {
  const auto options = plan_.parse(plan_.runs[index])->arguments.options;
  if (options.max_steps > 0) return options.max_steps;
  const auto number = [&](const char* name) { return std::strtod(setting_of(files, name).c_str(), nullptr); };
  const double epochs = number("max-epochs");
  if (number("max-steps") > 0 || epochs <= 0 || files.total_steps <= 0) return std::nullopt;
  return std::llround(static_cast<double>(files.total_steps) * options.max_epochs / epochs);
}

/// The runs as the sweep trained them: without the steps of a run that was trained on, by which it would beat others.
/// \param trained_on  receives the last steps of such runs, by label
std::vector<RunFiles> Sweep::runs_of_sweep(nlohmann::json& trained_on) const {
  trained_on = nlohmann::json::object();
  std::vector<RunFiles> runs;
  for (std::size_t i = 0; i < folders_.size(); ++i) {
    std::error_code error;
    if (!fs::exists(folders_[i] / "metrics.jsonl", error)) continue;
    auto& files = runs.emplace_back(read_run(folders_[i]));
    const auto last = own_steps(i, files);
    if (!last || files.steps.empty() || files.steps.back().step <= *last) continue;
    trained_on[plan_.runs[i].label] = files.steps.back().step;
    std::erase_if(files.steps, [&](const StepLine& line) { return line.step > *last; });
    std::erase_if(files.evals, [&](const EvalLine& line) { return line.step > *last; });
    std::erase_if(files.saves, [&](const SaveLine& line) { return line.step > *last; });
    files.total_steps = *last;
    const auto own = plan_.parse(plan_.runs[i]);
    for (const char* name : {"max-steps", "max-epochs"}) {
      const auto* option = own->table.get_option(std::string("--") + name);
      files.settings[name] = option->count() > 0 ? option->results().back() : option->get_default_str();
    }
  }
  return runs;
}

/// The command that trains a run for longer: on from its end, or from its start where its learning rate has fallen for
/// that end, because a restart would raise it again in the middle.
Sweep::Advice Sweep::advice(std::size_t index, const RunFiles& files) const {
  const auto parsed = plan_.parse(plan_.runs[index]);
  auto& options = parsed->arguments.options;
  const std::string length = options.max_steps > 0 ? "--max-steps N" : "--max-epochs N";
  const auto schedule = setting_of(files, "lr-schedule");
  const bool falls = schedule != "constant" && schedule != "inverse-sqrt" && setting_of(files, "schedule-steps") == "0";
  if (!falls && !checkpoints_of_run(folders_[index] / "checkpoints").empty()) {
    options.repeated = collect_repeated_words(parsed->table);
    return {"to train it on", detail::restart_command(options, world_.size()) + " " + length};
  }
  const auto words = collect_given_words(
      parsed->table, {"sweep", "sweep-prune", "run-name", "max-steps", "max-epochs", "json", "quiet", "dry-run"});
  const auto why = falls ? fmt::format("its {} schedule has ended", schedule) : "it has no checkpoint";
  return {"to train it for longer, from the start, as " + why,
          fmt::format("{} {} --run-name {} {}", detail::program_command(options.program, world_.size()),
                      fmt::join(words, " "), shell_word(plan_.name + "-" + plan_.runs[index].label), length)};
}

/// Says for which options this run has the largest or smallest of the numbers that were tried.
std::vector<std::string> Sweep::edges(std::size_t index) const {
  std::map<std::string, std::set<double>> tried;
  std::map<std::string, std::pair<double, std::string>> own;
  for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
    for (const auto& word : plan_.runs[i].words) {
      const auto equals = word.find('=');
      if (!word.starts_with("--") || equals == std::string::npos) continue;
      const auto name = word.substr(2, equals - 2), text = word.substr(equals + 1);
      char* end = nullptr;
      const double value = std::strtod(text.c_str(), &end);
      // More seeds or steps would not be tried for a better value.
      if (end == text.c_str() || *end != '\0' || name == "seed" || name.starts_with("max-")) continue;
      tried[name].insert(value);
      if (i == index) own[name] = {value, text};
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [name, value] : own) {
    const auto& all = tried[name];
    const bool largest = value.first == *all.rbegin();
    if (all.size() < 2 || (!largest && value.first != *all.begin())) continue;
    sentences.push_back(
        fmt::format("the best {}, {}, is the {} that was tried: a {} one may be better; add it to "
                    "--sweep, which trains only that one",
                    name, value.second, largest ? "largest" : "smallest", largest ? "larger" : "smaller"));
  }
  return sentences;
}

void Sweep::compare(nlohmann::json& report) const {
  nlohmann::json trained_on;
  const auto comparison = compare_runs(runs_of_sweep(trained_on), false);
  report = run_comparison_to_json(comparison);
  report["trained_on"] = trained_on;
  report["directory"] = folder_.string();
  report["failures"] = nlohmann::json::object();
  for (const auto& [index, failure] : failures_) report["failures"][plan_.runs[index].label] = failure;
  report["stopped_early"] = false;
  if (!comparison.runs.empty()) {
    std::istringstream lines(run_comparison_to_text(comparison));
    for (std::string line; std::getline(lines, line);) log_.info(line);
  }
  for (const auto& [index, failure] : failures_)
    log_.warning(fmt::format("run {} failed: {}", plan_.runs[index].label, failure));
  for (const auto& [label, step] : trained_on.items())
    log_.info(
        fmt::format("{} was trained on to step {}: only the steps of the sweep are compared", label, step.dump()));
  const auto best = best_run(comparison);
  if (!best) return log_.info("winner    none: no run has a loss");
  const auto index = static_cast<std::size_t>(std::find(folders_.begin(), folders_.end(), best->run->files.directory) -
                                              folders_.begin());
  const auto& label = plan_.runs[index].label;
  if (!best->by_validation) log_.info("No run was validated. " + best_run_sentence(*best));
  const auto at_edge = edges(index);
  for (const auto& sentence : at_edge) log_.info("edge      " + sentence);
  const auto next = advice(index, best->run->files);
  log_.info(fmt::format("winner    {}   {}: {}", label, next.purpose, next.command));
  report["winner"] = {
      {"run", label},
      {"directory", folders_[index].string()},
      {"by", best->by_validation ? "validation" : "training"},
      {"loss", best->loss},
      {"step", best->step},
      {"next", best->next == nullptr ? nlohmann::json() : nlohmann::json(best->next->label)},
      {"distance", best->next == nullptr ? nlohmann::json() : nlohmann::json(best->next_loss - best->loss)},
      {"at_edge", at_edge},
      {"command", next.command}};
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
