#include "lib/training/run/run_executor.hpp"

#include <cmath>

#include "lib/base/types/error.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {

RunExecutor::RunExecutor(const Input& input, const RunRules& rules)
    : run_(input), rules_(rules), life_(rules.max_nonfinite_steps) {}

void RunExecutor::after_fisher_batch() { handle(run_event::FisherBatch{interval_is_over()}); }

bool RunExecutor::needs_state() {
  interval_over_.reset();
  if (needs_state_of(run_.trainer.state().step, life_, rules_)) return true;
  return *(interval_over_ = interval_is_over());
}

void RunExecutor::step_measured(const StepReport& step) {
  run_.world.end_waits({});  // from here on there is something to save
  run_.folder.check_owner(false);
  handle(run_event::StepMeasured{step});
}

void RunExecutor::step_done(bool last) {
  const bool asks = !last && life_.is_open;
  handle(run_event::StepDone{.is_last = last,
                             .interval_over = asks && (interval_over_ ? *interval_over_ : interval_is_over())});
}

bool RunExecutor::interval_is_over() {
  const auto minutes = rules_.save_interval_minutes;
  return minutes > 0 && any_rank(run_.world, run_.folder.seconds_since_save() >= 60 * minutes);
}

void RunExecutor::handle(const RunEvent& event) {
  const auto actions = next_actions(life_, event, rules_);
  auto& state = run_.trainer.state();
  state.validation = life_.validation;
  state.validation_due = life_.validation_due;
  for (const auto& action : actions) execute(action);
}

void RunExecutor::execute(const RunAction& action) {
  using enum RunActionKind;
  using namespace run_event;
  run_.log.debug("action    " + to_string(action));
  const bool computes = action.kind == validate || action.kind == probe;
  const FlightWork work(run_.world.recorder(), to_string(action.kind), computes ? WorkKind::compute : WorkKind::write);
  switch (action.kind) {
    case open: {
      const auto best = run_.folder.open();
      return handle(Opened{best.value, best.step});
    }
    case warn:
      if (run_.world.rank() != 0) return;
      run_.progress.finish();
      return run_.log.warning(action.text);
    case save:
    case save_for_best:
    case save_for_now:
      run_.folder.start_save(action.kind != save);
      return handle(SaveBegun{});
    case poll_save:
      return end_save(false);
    case finish_save:
      return end_save(true);
    case amend:
      if (const auto done = run_.folder.amend_checkpoint()) handle(Amended{*done});
      return;
    case point_latest:
    case roll_back: {
      const bool done = run_.folder.make_link(action, life_);
      return handle(Linked{action.step, every_rank(run_.world, done)});
    }
    case point_best:
      run_.folder.make_link(action, life_);
      return;
    case keep_for_good:
      return run_.folder.keep_for_good(action.step);
    case prune:
      return handle(Pruned{run_.folder.prune(life_.proven_step)});
    case strip:
    case finish_strip:
      return run_.folder.strip(life_.proven_step, action.kind == finish_strip);
    case validate: {
      const bool whole = run_.validation.run([&] {
        if (life_.pending) end_save(false);
      });
      return whole ? handle(Validated{run_.validation.deciding_value(), run_.validation.falls_behind()})
                   : handle(ValidationCut{});
    }
    case tell_validation:
      return run_.validation.tell(life_);
    case probe:
      return handle(Probed{std::isfinite(run_.validation.probe_loss())});
    case give_up:
      run_.progress.finish();
      return run_.folder.give_up(action.text, life_);
    case require_saved:
      if (!run_.folder.save_error().empty()) throw IoError(action.text + ": " + run_.folder.save_error());
      return;
    case write_adapter:
      return run_.outputs.write_adapter();
    case export_files:
      return handle(Exported{run_.outputs.export_files(life_.is_saved)});
    case go_on:
      return handle(GoOn{});
  }
}

void RunExecutor::end_save(bool wait) {
  if (!life_.pending) return;
  bool has_latest = false;
  const auto saved = run_.folder.finish_save(wait, [&] {
    for (const auto& action : links_of_pending(life_)) {
      run_.log.debug("action    " + to_string(action));
      const bool done = run_.folder.make_link(action, life_);
      has_latest = has_latest || (done && action.kind == RunActionKind::point_latest);
    }
  });
  if (saved) handle(run_event::SaveWritten{*saved, any_rank(run_.world, has_latest)});
}

}  // namespace fsdp
