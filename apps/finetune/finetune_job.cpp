#include "apps/finetune/finetune_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/common/app_main.hpp"
#include "apps/common/objective_arguments.hpp"
#include "apps/finetune/finetune.hpp"
#include "lib/base/process/answer_within.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/different_collectives.hpp"
#include "lib/ranks/recorded_group.hpp"
#include "lib/reports/runs/job_flights.hpp"
#include "lib/reports/runs/rank_status.hpp"
#include "lib/training/step/plan.hpp"
#include "lib/training/watch/exclude_file.hpp"

namespace fsdp {
namespace {

/// Notes the sizes that the user gave, for checkpoints that do not state their model's sizes.
void note_given_sizes(const OptionTable& app, ModelOptions& o) {
  for (const char* name : {"num-layers", "num-heads", "embed-size", "ffn-hidden-size", "vocab-size"}) {
    if (app.get_option(std::string("--") + name)->count() > 0) o.given_sizes.emplace_back(name);
  }
}

/// Where no option asks for saves, a run saves by time all the same, because a kill would lose everything; of these
/// checkpoints the newest is enough.
void choose_save_interval(const OptionTable& app, TrainOptions& o) {
  if (app.get_option("--save-interval-minutes")->count() > 0) return;
  if (!o.save_every.never() || o.no_final_save) o.save_interval_minutes = 0;
  o.interval_saves_pass = o.save_interval_minutes > 0 && o.keep_last == 0;
}

/// How long the records of runs that were killed, and never went on, stay in memory.
constexpr std::chrono::hours kOldFlight{7 * 24};

/// Adds why ranks did not arrive, and leaves a file of what each of them did.
std::string explained(const StuckFailure& problem, const std::filesystem::path& run,
                      const std::filesystem::path& exclude_file, const Logger& log) {
  const std::string failure = problem.what();
  const bool is_fault_of_node = dynamic_cast<const DifferentCollectives*>(&problem) == nullptr;
  const auto flights = flights_of_run(run, FlightMap::kEvents);
  const auto verdict = verdict_of(flights, 0);
  if (!verdict.is_stuck) return failure;
  auto text = fmt::format("{}; why: {}", failure, verdict.text);
  const auto is_open = answer_within(kLookAtFolder, [folder = run / kStatusFolder] {
    std::error_code error;
    return std::filesystem::exists(folder, error);
  });
  if (!is_open.value_or(false)) return text;  // the run's folder, or it does not answer
  const auto file = write_stuck_file(run, verdict, flights);
  if (file.problem.empty()) text += fmt::format("; what each rank did: {}", file.path.string());
  if (file.is_ours && !verdict.disagree && is_fault_of_node) {
    std::vector<std::string> nodes;
    for (const auto& flight : flights) {
      const bool is_named = std::ranges::find(verdict.ranks, flight.rank) != verdict.ranks.end();
      if (is_named && !flight.was_killed_for_memory) nodes.push_back(flight.host);
    }
    exclude_nodes(exclude_file, nodes, log);
  }
  return text;
}

/// While it lives, a signal also ends waits for ranks that do not arrive: until the first step there is nothing to
/// save.
class EndedWaits {
 public:
  EndedWaits(ProcessGroup& world, const RunStart& start) : world_(world) {
    world_.end_waits([&clock = start.clock] { return clock.signalled(); });
  }
  EndedWaits(const EndedWaits&) = delete;
  EndedWaits& operator=(const EndedWaits&) = delete;
  ~EndedWaits() { world_.end_waits({}); }

 private:
  ProcessGroup& world_;
};

}  // namespace

ExitCode run_finetune_job(OptionTable& app, FinetuneArguments& arguments, JobEvents& events, ProcessGroup& world,
                          const Logger& log, nlohmann::json& report) {
  auto& options = arguments.options;
  require_same_options(world, app);
  const auto ignored = log_config(app, arguments.notes, log);
  events.set_run(world, options);
  note_given_sizes(app, options.model);
  resolve_names(options);  // report a missing input before a folder is claimed
  RunStart start(world, options, log);
  if (events.is_wanted()) start.clock.reserve(JobEvents::kLimit_seconds);
  const EndedWaits until_the_first_step(world, start);
  if (start.restart) {
    options.left_behind = options_left_behind(app, *start.restart);
    apply_saved_options(app, options, *start.restart);
  }
  apply_fine_tuning_defaults(app, options);
  choose_save_interval(app, options);
  const auto saved = collect_saved_options(app);
  options.of_job = collect_options_of_job(app);
  options.repeated = collect_repeated_words(app);
  options.as_given = collect_all_options(app);
  resolve_names(options);  // names that came from the checkpoint
  check_objective_options(options);
  const auto run = run_directory(options);
  remove_old_flights(std::filesystem::file_time_type::clock::now() - kOldFlight);
  const bool is_seen = !options.train_data.empty() && !options.dry_run;
  FlightRecorder recorder({world.rank(), world.size(), clock_offset_to_rank0_ns(world), std::filesystem::absolute(run)},
                          is_seen ? flight_file(run, world.rank()) : std::filesystem::path());
  if (!recorder.problem().empty()) log.debug("record    of this rank alone: " + recorder.problem());
  RecordedGroup recorded(world, recorder);
  auto code = ExitCode::ok;
  try {
    code = run_finetune(recorded, start, options, saved, events, log, report);
  } catch (const StuckFailure& failure) {
    throw RuntimeFailure(explained(failure, run, options.exclude_file, log));
  }
  if (!ignored.empty()) report["ignored"].update(ignored.to_json());
  return code;
}

}  // namespace fsdp
