#pragma once
// The life of a run beside its steps: validations, checkpoints and their links, exports, and its end. A pure function
// decides, as schedule.cpp does for the collectives of a micro-batch: the function sees an event, changes the state,
// and returns a list of actions. The executor of the list (run_executor.hpp) reports the outcome of an
// action as a further event, before the next action of the list.
//
// Every rank sees the same events, so that all ranks return the same list: actions are collective.
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/training/record/run_manifest.hpp"
#include "lib/training/step/nonfinite_steps.hpp"
#include "lib/training/step/step_interval.hpp"

namespace fsdp {

/// The options of a run that decide about its actions.
struct RunRules {
  double save_every = 0;             ///< steps between saves, see falls_on(); 0: none but the last
  double save_interval_minutes = 0;  ///< between saves, too; 0: any
  bool saves_pass = false;           ///< a checkpoint that is not the last one goes when a newer one is there
  double eval_every = 0;             ///< steps between validations; 0: none but the last
  double tasks_every = 0;            ///< steps between benchmarks, which are validations, too; 0: none of their own
  double verify_every = 0;           ///< steps between comparisons of the ranks' state; 0: none
  double sniff_every = 0;            ///< steps between tests of the nodes, for which no step is under way; 0: none
  bool has_validation = false;       ///< a validation has something to compute or to write
  bool final_save = true;            ///< the last state is saved; a run that is stopped saves its state in any case
  bool exports = false;              ///< files are written from the last state
  bool ends_with_best = false;       ///< adapter and exports are those of the best state
  bool strips = false;               ///< older checkpoints lose their optimizer's state
  bool continues = false;            ///< the job goes on with a run that has the folder
  std::int64_t max_nonfinite_steps = 10;  ///< in a row, after which the run ends
  ValidationRules validation = {};
};

/// A save in the background.
struct PendingSave {
  std::int64_t step = 0;
  ValidationState validation;  ///< as the checkpoint will state it
};

/// The part of its life that a run is in; the answers to some actions depend on it.
enum class RunPhase {
  making_up,  ///< for a validation that an earlier job had to leave out
  training,
  settling,  ///< a stopped run waits for the save before its losses were not finite
  saving_last,
  validating_last,
  done
};

/// All that decides about the next actions of a run.
struct RunLife {
  explicit RunLife(std::int64_t max_nonfinite_steps) : nonfinite(max_nonfinite_steps) {}

  RunPhase phase = RunPhase::training;
  bool is_open = false;           ///< the run's folder is written; before, an older run of the name may have the folder
  bool is_stopped = false;        ///< by a signal or a time limit
  bool is_cut = false;            ///< a validation had to be left to the next job
  bool is_pruned = false;         ///< a validation was so much worse than those of other runs that this one ends
  std::int64_t step = 0;          ///< of the present state
  bool is_saved = false;          ///< a checkpoint of the present state exists or is being written
  bool is_here = false;           ///< and lies in the run's folder
  bool save_waits = false;        ///< a save that was due waits until losses are finite again
  bool save_failed = false;       ///< the newest save
  std::int64_t newest_save = -1;  ///< step of the newest save, failed or not; -1: none
  std::optional<PendingSave> pending = std::nullopt;
  bool has_latest = false;        ///< `latest` leads to a checkpoint
  std::int64_t proven_step = -1;  ///< states up to this one led to a finite loss
  std::int64_t newest_step = -1;  ///< of the checkpoints that this job has written
  std::int64_t latest_step = -1;  ///< of these, where `latest` points
  bool prune_again = false;       ///< an old checkpoint stays until a newer one is proven
  bool adapter_is_written = false;
  NonFiniteSteps nonfinite;
  bool validation_due = false;  ///< a validation falls on the present step and has not been made yet
  ValidationState validation;   ///< of the run
  ValidationState saved_best;   ///< as the newest checkpoint with a best states it; a failed save goes back to it
  ValidationVerdict verdict;    ///< on the newest validation
};

namespace run_event {

/// The job has its weights. A job that continues a run, or finds no other run in its folder, opens its folder at once.
struct Started {
  RunState state = {};
  bool is_saved = false;  ///< the state comes from a checkpoint
  bool is_here = false;   ///< of the run's own folder
  bool has_latest = false;
  bool old_run = false;      ///< a run that this job does not continue has the folder
  bool another_run = false;  ///< the count of --patience in the checkpoint is of another run, metric or data
};
/// The folder is open. \param best  the best of the run's checkpoints, as its link and files say
struct Opened {
  double best_value;
  std::int64_t best_step;
};
/// The Fisher pass has measured another batch.
struct FisherBatch {
  bool interval_over;  ///< --save-interval-minutes have passed since the last save
};
/// The first step can begin. \param steps_left  false: the run is over already
struct Ready {
  bool steps_left;
};
/// A step was computed and not reported yet.
struct StepMeasured {
  StepReport report;
};
/// The step was logged.
struct StepDone {
  bool is_last;
  bool interval_over;
};
struct SaveBegun {};
/// \param has_latest  `latest` leads to the new checkpoint
struct SaveWritten {
  bool saved;
  bool has_latest;
};
/// \param step  where `latest` leads now, if `done`
struct Linked {
  std::int64_t step;
  bool done;
};
struct Amended {
  bool done;
};
struct Pruned {
  bool until_proven;  ///< one more checkpoint goes once a newer one is proven
};
/// \param value         of the deciding metric; nothing: none decides
/// \param falls_behind  the run is to end here, unless it has made its last step
struct Validated {
  std::optional<DecidingValue> value;
  bool falls_behind = false;
};
/// The job has to end before the validation: no result of the validation counts.
struct ValidationCut {};
/// The loss of the last state.
struct Probed {
  bool is_finite;
};
/// No further step is made. \param fisher_batches  that were measured for Child-Tuning
struct Ended {
  bool is_stopped;
  std::int64_t fisher_batches;
};
/// The reports of the job are written: the picture of the losses, the trace, the use of memory.
struct Reported {};
struct Exported {
  bool whole;  ///< false: a signal came first
};
/// Answers RunActionKind::go_on.
struct GoOn {};

}  // namespace run_event

using RunEvent = std::variant<run_event::Started, run_event::Opened, run_event::FisherBatch, run_event::Ready,
                              run_event::StepMeasured, run_event::StepDone, run_event::SaveBegun,
                              run_event::SaveWritten, run_event::Linked, run_event::Amended, run_event::Pruned,
                              run_event::Validated, run_event::ValidationCut, run_event::Probed, run_event::Ended,
                              run_event::Reported, run_event::Exported, run_event::GoOn>;

enum class RunActionKind {
  open,             ///< the run's folder; an older run of its name is moved aside. Answered by Opened
  warn,             ///< says `text`
  save,             ///< starts to save the present state in the background. Answered by SaveBegun
  save_for_best,    ///< the same; the checkpoint goes when another one is the best
  save_for_now,     ///< the same; the checkpoint goes when a newer one is there
  poll_save,        ///< ends the pending save if all ranks have written their files; then answered by SaveWritten
  finish_save,      ///< waits for the pending save. Answered by SaveWritten, not at all if none is pending
  amend,            ///< has the state's checkpoint state its validation. Answered by Amended unless that is pending
  point_latest,     ///< to the checkpoint of `step`. Answered by Linked, but for the links of a new checkpoint
  point_best,       ///< to the checkpoint of `step`
  keep_for_good,    ///< the checkpoint of `step` no longer goes when another one is the best or newer
  prune,            ///< removes superseded checkpoints. Answered by Pruned
  strip,            ///< takes the optimizer's state out of older checkpoints, in the background
  finish_strip,     ///< waits until none is left to do
  roll_back,        ///< points `latest` to the newest checkpoint up to the proven `step`. Answered by Linked
  validate,         ///< answered by Validated or ValidationCut
  tell_validation,  ///< logs the results, whose verdict is known now
  probe,            ///< computes a loss of the last state. Answered by Probed
  give_up,          ///< ends the job with an error that begins with `text`
  require_saved,    ///< ends the job with an error that begins with `text` if the newest save failed
  write_adapter,
  export_files,  ///< that were asked for at the end, of the last state or of the best. Answered by Exported
  go_on          ///< answered by GoOn, once the actions before it are done
};

struct RunAction {
  RunActionKind kind;
  std::int64_t step = -1;
  std::string text = {};
};

/// "save", "latest", ...
const char* to_string(RunActionKind kind);
/// "save 4", "latest 4", ... for the log and for tests.
std::string to_string(const RunAction& action);

/// Changes `life` as the event says. \return what is to be done now
std::vector<RunAction> next_actions(RunLife& life, const RunEvent& event, const RunRules& rules);

/// The links that are made as soon as the checkpoint of life.pending appears, before anything else can fail.
std::vector<RunAction> links_of_pending(const RunLife& life);

/// True when an --eval-every validation falls on the present step.
bool validates_here(const RunLife& life, const RunRules& rules);

/// True if no further step is made although some are left: --patience is over, or the run is pruned.
bool ends_early(const RunLife& life, const RunRules& rules);

/// True if no other step may begin before life has seen `step`, which has begun: what follows it needs the state after
/// it, or its loss may matter to the next one.
bool needs_state_of(std::int64_t step, const RunLife& life, const RunRules& rules);

}  // namespace fsdp
