#include "lib/training/run/run_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdp {
namespace {

using namespace run_event;
using enum RunActionKind;

/// Answers one event.
class Decision {
 public:
  Decision(RunLife& life, const RunRules& rules) : life_(life), rules_(rules) {}

  void operator()(const Started& e) {
    life_.step = e.state.step;
    life_.validation = e.state.validation;
    life_.validation_due = e.state.validation_due;
    life_.is_saved = e.is_saved;
    life_.is_here = e.is_saved && e.is_here;
    life_.has_latest = e.has_latest;
    if (e.another_run) {
      life_.validation.without_improvement = 0;
      life_.validation.patience_value = ValidationState().patience_value;
    }
    if (!e.old_run) open();
  }
  void operator()(const Opened& e) {
    if (!rules_.continues) {
      life_.validation = {};
      life_.has_latest = false;  // that was the older run's
      return;
    }
    life_.validation.best_value = e.best_value;
    life_.validation.best_step = e.best_step;
    life_.saved_best = life_.validation;
  }
  void operator()(const FisherBatch& e) {
    life_.is_saved = life_.is_here = false;
    if (life_.pending && !e.interval_over) add(poll_save);
    if (!e.interval_over) return;
    if (!life_.is_open) open();
    start_due_save();
  }
  void operator()(const Ready& e) {
    if (!e.steps_left) return;
    life_.validation_due = life_.validation_due && life_.is_open && validates_here(life_, rules_);
    if (!life_.validation_due) return;
    life_.phase = RunPhase::making_up;
    add(validate, life_.step);
  }
  void operator()(const StepMeasured& e) {
    life_.step = e.report.step;
    if (auto warning = life_.nonfinite.add(e.report); !warning.empty()) out_.push_back({warn, -1, std::move(warning)});
    if (life_.is_open && std::isfinite(e.report.loss)) {
      prove(e.report.step - 1);
    } else if (life_.is_open) {
      roll_back_latest();
    }
    if (life_.nonfinite.too_many()) give_up_because(life_.nonfinite.words());
    if (!life_.is_open && !e.report.skipped) open();
  }
  void operator()(const StepDone& e) {
    life_.is_saved = life_.is_here = false;
    life_.validation_due = life_.is_open && validates_here(life_, rules_);
    if (!life_.is_open) return;
    if (save_is_due(e)) {
      start_due_save();
    } else if (life_.pending) {
      add(poll_save);
    }
    if (!e.is_last && life_.validation_due)
      add(validate, life_.step);  // after the last step a validation follows anyway
  }
  void operator()(const SaveBegun&) {
    life_.pending = {life_.step, life_.validation};
    life_.newest_save = life_.step;
    life_.save_failed = false;
  }
  void operator()(const SaveWritten& e) {
    const auto written = *std::exchange(life_.pending, std::nullopt);
    life_.save_failed = !e.saved;
    record_best_save(e.saved, written);
    if (!e.saved) return;
    life_.newest_step = written.step;
    life_.has_latest = true;
    if (e.has_latest) life_.latest_step = written.step;
    add_prune();
  }
  void operator()(const Linked& e) {
    if (e.done) life_.latest_step = e.step;
  }
  void operator()(const Amended& e) {
    record_best_save(e.done, {life_.step, life_.validation});
    if (!e.done) return;
    if (life_.validation.best_step == life_.step) add(point_best, life_.step);
    if (life_.step == life_.newest_step) add_prune();
  }
  void operator()(const Pruned& e) { life_.prune_again = e.until_proven; }
  void operator()(const Validated& e) {
    const bool was_due = std::exchange(life_.validation_due, false);
    const auto former_best = life_.validation.best_step;
    life_.verdict = {};
    if (e.value) {
      auto found = *e.value;
      found.may_be_best = !life_.nonfinite.any() && life_.is_open;
      life_.verdict = judge_validation(life_.validation, rules_.validation, found);
    }
    if (life_.verdict.began_anew && former_best >= 0) add(keep_for_good, former_best);
    add(tell_validation, life_.step);
    if (life_.phase == RunPhase::validating_last) {
      if (rules_.validation.decide() || was_due) record_validation();
      life_.phase = RunPhase::done;
    } else {
      life_.is_pruned = e.falls_behind;
      record_validation();
      life_.phase = RunPhase::training;
    }
  }
  void operator()(const ValidationCut&) {
    life_.is_cut = true;
    if (std::exchange(life_.phase, RunPhase::training) != RunPhase::validating_last) return;
    life_.is_stopped = true;
    end();
  }
  void operator()(const Probed& e) {
    if (e.is_finite) {
      prove(life_.step);
      return save_last();
    }
    give_up_because(fmt::format(
        "the model after step {} has a loss that is not finite: it is neither saved nor exported", life_.step));
  }
  void operator()(const Ended& e) {
    life_.phase = RunPhase::training;
    life_.is_stopped = e.is_stopped;
    // Keep the measurements of the Fisher pass, which comes before the first step.
    if (e.is_stopped && !life_.is_open && e.fisher_batches > 0) open();
    end();
  }
  void operator()(const Reported&) {
    if (life_.is_stopped) return;
    add(export_files);
    if (rules_.strips) add(finish_strip);
  }
  void operator()(const Exported& e) { life_.is_stopped = !e.whole; }
  void operator()(const GoOn&) {
    if (life_.phase == RunPhase::settling) {
      roll_back_latest();  // from the save that was pending
      // A state with a loss that is not finite is saved only if there is no checkpoint at all.
      return life_.has_latest ? after_last_save() : save_last();
    }
    life_.is_saved = (life_.is_saved || keeps_last()) && !life_.save_failed;
    life_.is_here = life_.is_here && life_.is_saved;
    after_last_save();
  }

  std::vector<RunAction> take() { return std::move(out_); }

 private:
  void add(RunActionKind kind, std::int64_t step = -1) { out_.push_back({kind, step, {}}); }
  void add_prune() {
    add(prune);
    if (rules_.strips) add(strip);
  }
  void open() {
    life_.is_open = true;
    add(RunActionKind::open);
  }

  void prove(std::int64_t step) {
    life_.proven_step = std::max(life_.proven_step, step);
    if (life_.latest_step < life_.newest_step) add(point_latest, life_.newest_step);
    if (std::exchange(life_.prune_again, false)) add_prune();
  }
  void roll_back_latest() {
    if (life_.latest_step > life_.proven_step) add(roll_back, life_.proven_step);
  }

  bool save_is_due(const StepDone& e) {
    if (e.is_last) return false;  // the final save follows
    const bool due = life_.save_waits || e.interval_over || falls_on(life_.step, rules_.save_every);
    // While losses are not finite, this state is not known to be better than the last saved one.
    life_.save_waits = due && life_.nonfinite.any();
    return due && !life_.save_waits;
  }
  void finish_pending() {
    if (life_.pending) add(finish_save);
  }
  void give_up_because(std::string why) {
    finish_pending();
    out_.push_back({give_up, -1, std::move(why)});
  }
  void start_due_save() { start_save(rules_.saves_pass ? save_for_now : save); }
  void start_save(RunActionKind kind) {
    finish_pending();
    add(kind, life_.step);
    life_.is_saved = life_.is_here = true;
  }
  /// Takes note of a checkpoint that was to state a best. A later best may have been found meanwhile.
  void record_best_save(bool saved, const PendingSave& save) {
    if (save.validation.best_step != save.step) return;
    if (saved) {
      life_.saved_best = save.validation;
    } else if (life_.validation.best_step == save.step) {
      // Values of something else do not compare.
      const bool compares = life_.saved_best.step < 0 || measure_alike(life_.saved_best, life_.validation);
      const auto& best = compares ? life_.saved_best : ValidationState();
      life_.validation.best_value = best.best_value;
      life_.validation.best_step = best.best_step;
    }
  }
  /// Has a checkpoint state the newest validation: the one of the present state, or a new one if the state is the best.
  void record_validation() {
    if (!life_.is_open) return;
    if (!life_.is_here) {
      if (!life_.verdict.is_best) return;
      start_save(save_for_best);
      if (life_.phase == RunPhase::training) return;
      add(finish_save);
      out_.push_back({require_saved, -1, "the best checkpoint could not be saved"});
    } else if (life_.pending || life_.newest_save != life_.step || !life_.save_failed) {
      if (life_.pending && life_.pending->step == life_.step) life_.pending->validation = life_.validation;
      add(amend, life_.step);
    } else {
      record_best_save(false, {life_.step, life_.validation});
    }
  }

  bool keeps_last() const { return life_.is_stopped || rules_.final_save; }
  void end() {
    if (!life_.is_open) {  // no step was made, and an older run of this name keeps the folder
      after_last_save();
    } else if (!life_.is_stopped && (!life_.is_saved || rules_.exports)) {
      add(probe, life_.step);  // no later step checks the last update
    } else if (life_.is_stopped && life_.nonfinite.any()) {
      life_.phase = RunPhase::settling;
      finish_pending();
      add(go_on);
    } else {
      save_last();
    }
  }
  void save_last() {
    life_.phase = RunPhase::saving_last;
    // A stopped run is resumed from its own folder.
    const bool is_safe = life_.is_stopped ? life_.is_here : life_.is_saved;
    if (!is_safe && keeps_last()) start_save(save);
    add(finish_save);
    if (is_safe && keeps_last() && rules_.saves_pass) add(keep_for_good, life_.step);
    if (keeps_last()) out_.push_back({require_saved, -1, "the last checkpoint could not be saved"});
    add(go_on);
  }
  void after_last_save() {
    life_.phase = life_.is_stopped ? RunPhase::done : RunPhase::validating_last;
    if (life_.is_open && (life_.is_stopped || !rules_.ends_with_best) && !std::exchange(life_.adapter_is_written, true))
      add(write_adapter);
    if (life_.is_stopped) return;
    if (rules_.has_validation && !ends_early(life_, rules_)) {
      add(validate, life_.step);
      return;
    }
    // Patience or pruning ended the run, whose last validation was of this state; or there is nothing to validate.
    if (rules_.validation.decide() || life_.validation_due) record_validation();
    life_.phase = RunPhase::done;
  }

  RunLife& life_;
  const RunRules& rules_;
  std::vector<RunAction> out_;
};

bool validates_after(std::int64_t step, const RunRules& rules) {
  return rules.has_validation && (falls_on(step, rules.eval_every) || falls_on(step, rules.tasks_every));
}

}  // namespace

const char* to_string(RunActionKind kind) {
  switch (kind) {
    case open:
      return "open";
    case warn:
      return "warn";
    case save:
      return "save";
    case save_for_best:
      return "save for best";
    case save_for_now:
      return "save for now";
    case poll_save:
      return "poll save";
    case finish_save:
      return "finish save";
    case amend:
      return "amend";
    case point_latest:
      return "latest";
    case point_best:
      return "best";
    case keep_for_good:
      return "keep for good";
    case prune:
      return "prune";
    case strip:
      return "strip";
    case finish_strip:
      return "finish strip";
    case roll_back:
      return "roll back";
    case validate:
      return "validate";
    case tell_validation:
      return "tell validation";
    case probe:
      return "probe";
    case give_up:
      return "give up";
    case require_saved:
      return "require saved";
    case write_adapter:
      return "write adapter";
    case export_files:
      return "export";
    case go_on:
      return "go on";
  }
  return "";
}

std::string to_string(const RunAction& action) {
  return action.step < 0 ? to_string(action.kind) : fmt::format("{} {}", to_string(action.kind), action.step);
}

std::vector<RunAction> links_of_pending(const RunLife& life) {
  std::vector<RunAction> links{{point_latest, life.pending->step, {}}};
  if (life.pending->validation.best_step == life.pending->step) links.push_back({point_best, life.pending->step, {}});
  return links;
}

bool validates_here(const RunLife& life, const RunRules& rules) { return validates_after(life.step, rules); }

bool ends_early(const RunLife& life, const RunRules& rules) {
  return life.is_pruned || out_of_patience(life.validation, rules.validation);
}

bool needs_state_of(std::int64_t step, const RunLife& life, const RunRules& rules) {
  return !life.is_open || life.nonfinite.any() || life.save_waits || falls_on(step, rules.save_every) ||
         falls_on(step, rules.verify_every) || falls_on(step, rules.sniff_every) || validates_after(step, rules);
}

std::vector<RunAction> next_actions(RunLife& life, const RunEvent& event, const RunRules& rules) {
  Decision decision(life, rules);
  std::visit(decision, event);
  return decision.take();
}

}  // namespace fsdp
