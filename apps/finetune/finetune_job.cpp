#include "apps/finetune/finetune_job.hpp"

#include <nlohmann/json.hpp>

#include "apps/common/app_main.hpp"
#include "apps/finetune/finetune.hpp"

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
  const auto ignored = tell_of_config(app, arguments.notes, log);
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
  const auto code = run_finetune(world, start, options, saved, events, log, report);
  if (!ignored.empty()) report["ignored"].update(ignored.to_json());
  return code;
}

}  // namespace fsdp
