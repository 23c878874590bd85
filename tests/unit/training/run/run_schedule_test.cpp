#include "lib/training/run/run_schedule.hpp"

#include "tests/support/torch_doctest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using fsdp::DecidingValue;
using fsdp::next_actions;
using fsdp::RunActionKind;
using fsdp::RunEvent;
using fsdp::RunLife;
using fsdp::RunRules;
using fsdp::StepReport;
using namespace fsdp::run_event;
using Actions = std::vector<std::string>;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A run whose actions all succeed, unless a member says otherwise, and are written down.
class Run {
 public:
  explicit Run(const RunRules& asked) : rules(asked) {}

  /// \return the actions that answer the event and the events that come of them
  Actions see(const RunEvent& event) {
    const auto before = told_.size();
    handle(event);
    return {told_.begin() + static_cast<std::ptrdiff_t>(before), told_.end()};
  }
  Actions start(bool old_run = false) { return see(Started{.old_run = old_run}); }
  Actions step(double loss = 2, bool last = false) {
    ++step_;
    StepReport report;
    report.step = step_;
    report.loss = loss;
    report.skipped = !std::isfinite(loss);
    auto all = see(StepMeasured{report});
    if (is_over) return all;
    const auto after = see(StepDone{.is_last = last, .interval_over = interval_over});
    all.insert(all.end(), after.begin(), after.end());
    return all;
  }
  Actions end(bool stopped = false) { return see(Ended{stopped, fisher_batches}); }

  RunRules rules;
  RunLife life{3};
  double value = 5;  ///< of the next validation
  bool cut = false, behind = false, saves = true, links = true, writes_at_once = true, amends = true,
       interval_over = false, until_proven = false;
  double probed = 1;
  std::int64_t fisher_batches = 0;
  bool is_over = false;  ///< given up

 private:
  void handle(const RunEvent& event) {
    for (const auto& action : next_actions(life, event, rules)) {
      if (is_over) return;
      told_.push_back(fsdp::to_string(action));
      execute(action);
    }
  }
  void end_save() {
    if (!life.pending) return;
    for (const auto& link : fsdp::links_of_pending(life)) {
      if (saves) told_.push_back(fsdp::to_string(link));
    }
    handle(SaveWritten{saves, saves && links});
  }
  void execute(const fsdp::RunAction& action) {
    using enum RunActionKind;
    switch (action.kind) {
      case open:
        return handle(Opened{life.validation.best_value, life.validation.best_step});
      case save:
      case save_for_best:
      case save_for_now:
        return handle(SaveBegun{});
      case poll_save:
        if (writes_at_once) end_save();
        return;
      case finish_save:
        return end_save();
      case point_latest:
      case roll_back:
        return handle(Linked{action.step, links});
      case amend:
        if (!life.pending || life.pending->step != life.step) handle(Amended{amends});
        return;
      case prune:
        return handle(Pruned{until_proven});
      case validate:
        if (cut) return handle(ValidationCut{});
        return handle(Validated{DecidingValue{.step = life.step, .set = "", .count = 10, .value = value}, behind});
      case probe:
        return handle(Probed{std::isfinite(probed)});
      case give_up:
        is_over = true;
        return;
      case require_saved:
        is_over = life.save_failed;
        return;
      case go_on:
        return handle(GoOn{});
      case export_files:
        return handle(Exported{true});
      default:
        return;
    }
  }

  std::int64_t step_ = 0;
  Actions told_;
};

RunRules validating(double save_every = 0) {
  return {.save_every = save_every, .eval_every = 2, .has_validation = true, .validation = {.keeps_best = true}};
}

}  // namespace

TEST_SUITE("run/run_schedule") {
  TEST_CASE("the next step waits where the state after a step is needed, or a loss was not finite") {
    RunRules rules;
    rules.save_every = 4;
    rules.eval_every = 3;
    Run run(rules);
    const auto waits = [&](std::int64_t step) { return fsdp::needs_state_of(step, run.life, run.rules); };
    run.start(true);  // an older run has the folder until a step is done
    CHECK(waits(1));
    run.step();
    CHECK_FALSE(waits(2));
    CHECK_FALSE(waits(3));  // nothing to validate
    CHECK(waits(4));
    run.rules.has_validation = true;
    CHECK(waits(3));
    run.step(kNaN);
    CHECK(waits(5));
    run.step();
    CHECK_FALSE(waits(5));
    run.life.save_waits = true;
    CHECK(waits(5));
  }

  TEST_CASE("a run without saves and validations saves its last state, after a look at its loss") {
    Run run({});
    CHECK(run.start() == Actions{"open"});
    CHECK(run.step() == Actions{});
    CHECK(run.step(2, true) == Actions{});
    CHECK(run.end() ==
          Actions{"probe 2", "save 2", "finish save", "latest 2", "prune", "require saved", "go on", "write adapter"});
    CHECK(run.see(Reported{}) == Actions{"export"});
  }

  TEST_CASE("saves in the background appear with the next step; the last one is waited for") {
    Run run({.save_every = 2});
    run.start();
    CHECK(run.step() == Actions{});
    CHECK(run.step() == Actions{"save 2"});
    CHECK(run.step() == Actions{"poll save", "latest 2", "prune"});
    CHECK(run.step() == Actions{"save 4"});
    run.writes_at_once = false;
    CHECK(run.step() == Actions{"poll save"});
    CHECK(run.step() == Actions{"finish save", "latest 4", "prune", "save 6"});
    CHECK(run.end(true) == Actions{"finish save", "latest 6", "prune", "require saved", "go on", "write adapter"});
    CHECK(run.see(Reported{}) == Actions{});
  }

  TEST_CASE(
      "--keep-optimizer: older checkpoints lose their optimizer beside the training, and all of them at its end") {
    Run run({.save_every = 1, .strips = true});
    run.start();
    CHECK(run.step() == Actions{"save 1"});
    CHECK(run.step() == Actions{"finish save", "latest 1", "prune", "strip", "save 2"});
    CHECK(run.step(2, true) == Actions{"poll save", "latest 2", "prune", "strip"});
    CHECK(run.end() == Actions{"probe 3", "save 3", "finish save", "latest 3", "prune", "strip", "require saved",
                               "go on", "write adapter"});
    CHECK(run.see(Reported{}) == Actions{"export", "finish strip"});
    Run stopped({.save_every = 1, .strips = true});
    stopped.start();
    stopped.step();
    stopped.end(true);
    CHECK(stopped.see(Reported{}) == Actions{});  // no time is left
  }

  TEST_CASE("saves by time that no option asks for go with the next, unless the last state has none of its own") {
    Run run({.saves_pass = true});
    run.start();
    run.interval_over = true;
    CHECK(run.step() == Actions{"save for now 1"});
    CHECK(run.step() == Actions{"finish save", "latest 1", "prune", "save for now 2"});
    CHECK(run.end(true) ==
          Actions{"finish save", "latest 2", "prune", "keep for good 2", "require saved", "go on", "write adapter"});
    Run done({.saves_pass = true});
    done.start();
    done.step(2, true);
    CHECK(done.end() ==
          Actions{"probe 1", "save 1", "finish save", "latest 1", "prune", "require saved", "go on", "write adapter"});
  }

  TEST_CASE("--no-final-save: nothing is saved at the end, but a stopped run is; the last loss is looked at") {
    for (const bool stopped : {false, true}) {
      Run run({.final_save = false});
      run.start();
      run.step();
      const auto at_the_end = run.end(stopped);
      CHECK((std::find(at_the_end.begin(), at_the_end.end(), "save 1") != at_the_end.end()) == stopped);
      CHECK((std::find(at_the_end.begin(), at_the_end.end(), "probe 1") != at_the_end.end()) != stopped);
    }
  }

  TEST_CASE("exports look at the last loss, though nothing is to be saved") {
    Run run({.final_save = false, .exports = true});
    run.start();
    run.step();
    CHECK(run.end() == Actions{"probe 1", "finish save", "go on", "write adapter"});
    Run bad({.final_save = false, .exports = true});
    bad.start();
    bad.step();
    bad.probed = kNaN;
    CHECK(bad.end() == Actions{"probe 1", "give up"});
  }

  TEST_CASE("an older run of the name has the folder until the first step changes the model") {
    Run run({.save_every = 1});
    CHECK(run.start(/*old_run=*/true) == Actions{});
    CHECK(run.step(kNaN) == Actions{"warn"});
    CHECK_FALSE(run.life.is_open);
    CHECK(run.step() == Actions{"open", "save 2"});
    Run idle({});
    idle.start(/*old_run=*/true);
    CHECK(idle.end(true) == Actions{});
    CHECK(idle.see(Reported{}) == Actions{});
  }

  TEST_CASE("the Fisher pass: saved when the time is over, and when the run is stopped before its first step") {
    Run run({});
    run.start(/*old_run=*/true);
    CHECK(run.see(FisherBatch{false}) == Actions{});
    CHECK(run.see(FisherBatch{true}) == Actions{"open", "save 0"});
    CHECK(run.see(FisherBatch{false}) == Actions{"poll save", "latest 0", "prune"});
    Run stopped({});
    stopped.start(/*old_run=*/true);
    stopped.fisher_batches = 2;
    CHECK(stopped.end(true) ==
          Actions{"open", "save 0", "finish save", "latest 0", "prune", "require saved", "go on", "write adapter"});
  }

  TEST_CASE("validation, saves, a signal and a restart: the list of docs/design.md") {
    Run run(validating(/*save_every=*/2));
    run.start();
    CHECK(run.step() == Actions{});
    CHECK(run.step() == Actions{"save 2", "validate 2", "tell validation 2", "amend 2"});
    CHECK(run.step() == Actions{"poll save", "latest 2", "best 2", "prune"});
    run.value = 6;
    CHECK(run.step() == Actions{"save 4", "validate 4", "tell validation 4", "amend 4"});
    CHECK(run.step() == Actions{"poll save", "latest 4", "prune"});
    CHECK(run.end(true) ==
          Actions{"save 5", "finish save", "latest 5", "prune", "require saved", "go on", "write adapter"});
    auto rules = validating(/*save_every=*/2);
    rules.continues = true;
    Run next(rules);
    CHECK(next.see(Started{.state = {.step = 5, .validation = run.life.validation},
                           .is_saved = true,
                           .is_here = true,
                           .has_latest = true}) == Actions{"open"});
    CHECK(next.see(Ready{true}) == Actions{});
    next.life.step = 6;
    CHECK(next.see(StepDone{}) == Actions{"save 6", "validate 6", "tell validation 6", "amend 6"});
  }

  TEST_CASE("a new best is saved at once; what is no best is not") {
    Run run(validating());
    run.start();
    run.step();
    CHECK(run.step() == Actions{"validate 2", "tell validation 2", "save for best 2"});
    CHECK(run.step() == Actions{"poll save", "latest 2", "best 2", "prune"});
    run.value = 6;
    CHECK(run.step() == Actions{"validate 4", "tell validation 4"});
    run.value = 4;
    run.step();
    CHECK(run.step() == Actions{"validate 6", "tell validation 6", "save for best 6"});
  }

  TEST_CASE("the last validation: of a state that is saved, of a new best, of neither") {
    Run saved(validating());
    saved.start();
    saved.step(2, true);
    CHECK(saved.end() == Actions{"probe 1", "save 1", "finish save", "latest 1", "prune", "require saved", "go on",
                                 "write adapter", "validate 1", "tell validation 1", "amend 1", "best 1", "prune"});
    auto rules = validating();
    rules.final_save = false;
    Run unsaved(rules);
    unsaved.start();
    unsaved.step();
    CHECK(unsaved.end() == Actions{"probe 1", "finish save", "go on", "write adapter", "validate 1",
                                   "tell validation 1", "save for best 1", "finish save", "latest 1", "best 1", "prune",
                                   "require saved"});
    Run worse(rules);
    worse.start();
    worse.step();
    worse.step();
    worse.value = 6;
    worse.step();
    CHECK(worse.end() ==
          Actions{"probe 3", "finish save", "go on", "write adapter", "validate 3", "tell validation 3"});
  }

  TEST_CASE("--final best: the adapter is written with the best state, unless the run is stopped") {
    auto rules = validating();
    rules.ends_with_best = true;
    Run run(rules);
    run.start();
    run.step();
    auto at_the_end = run.end();
    CHECK(std::find(at_the_end.begin(), at_the_end.end(), "write adapter") == at_the_end.end());
    Run stopped(rules);
    stopped.start();
    stopped.step();
    at_the_end = stopped.end(true);
    CHECK(at_the_end.back() == "write adapter");
  }

  TEST_CASE("a validation that is cut short is left to the next job, which makes it before its first step") {
    Run run(validating(/*save_every=*/2));
    run.start();
    run.step();
    run.cut = true;
    CHECK(run.step() == Actions{"save 2", "validate 2"});
    CHECK(run.life.is_cut);
    CHECK(run.life.validation_due);
    CHECK(run.end(true) == Actions{"finish save", "latest 2", "prune", "require saved", "go on", "write adapter"});

    auto rules = validating(/*save_every=*/2);
    rules.continues = true;
    for (const bool is_here : {true, false}) {
      Run next(rules);
      next.see(Started{
          .state = {.step = 2, .validation_due = true}, .is_saved = true, .is_here = is_here, .has_latest = true});
      const auto after =
          is_here ? Actions{"validate 2", "tell validation 2", "amend 2", "best 2"}
                  : Actions{"validate 2", "tell validation 2", "save for best 2", "finish save", "latest 2", "best 2",
                            "prune",      "require saved"};
      CHECK(next.see(Ready{true}) == after);
      CHECK_FALSE(next.life.validation_due);
    }
    Run done(rules);
    done.see(Started{.state = {.step = 2, .validation_due = true}, .is_saved = true, .is_here = true});
    CHECK(done.see(Ready{false}) == Actions{});
    CHECK(done.end() == Actions{"finish save", "require saved", "go on", "write adapter", "validate 2",
                                "tell validation 2", "amend 2", "best 2"});
  }

  TEST_CASE("a signal during the last validation: the run is stopped, and is saved even with --no-final-save") {
    auto rules = validating();
    rules.final_save = false;
    Run run(rules);
    run.start();
    run.step(2, true);
    run.cut = true;
    CHECK(run.end() == Actions{"probe 1", "finish save", "go on", "write adapter", "validate 1", "save 1",
                               "finish save", "latest 1", "prune", "require saved", "go on"});
    CHECK(run.life.is_stopped);
    CHECK(run.see(Reported{}) == Actions{});
  }

  TEST_CASE("losses that are not finite: latest goes back, a save that is due waits, the third in a row is the end") {
    Run run({.save_every = 2});
    run.until_proven = true;
    run.start();
    run.step();
    CHECK(run.step() == Actions{"save 2"});
    CHECK(run.step() == Actions{"poll save", "latest 2", "prune"});  // proven: the loss of step 3 is finite
    CHECK(run.step(kNaN) == Actions{"warn"});                        // a save was due at step 4
    CHECK(run.life.save_waits);
    run.until_proven = false;
    CHECK(run.step() == Actions{"prune", "save 5"});
    CHECK_FALSE(run.life.save_waits);

    Run bad({.save_every = 2});
    bad.start();
    bad.step();
    bad.step();
    CHECK(bad.step(kNaN) == Actions{"warn", "poll save", "latest 2", "prune"});
    CHECK(bad.step(kNaN) == Actions{"warn", "roll back 1"});
    CHECK(bad.step() == Actions{"latest 2", "save 5"});  // step 2 is proven, and so is what follows
    CHECK(bad.step(kNaN) == Actions{"warn", "poll save", "latest 5", "prune"});
    CHECK(bad.step(kNaN) == Actions{"warn", "roll back 4"});
    CHECK(bad.step(kNaN) == Actions{"warn", "give up"});
  }

  TEST_CASE("an overflow of fp16's loss scale is no warning, and no step that counts") {
    Run run({});
    run.start();
    StepReport report;
    report.step = 1;
    report.loss = 2;
    report.skipped = report.overflow = true;
    for (int i = 0; i < 5; ++i) CHECK(run.see(StepMeasured{report}) == Actions{});
  }

  TEST_CASE("a link that fails is tried again: at the next finite loss, and at the next that is not") {
    Run run({.save_every = 2});
    run.start();
    run.step();
    run.step();
    run.links = false;
    CHECK(run.step() == Actions{"poll save", "latest 2", "prune"});
    CHECK(run.step() == Actions{"latest 2", "save 4"});
    run.links = true;
    CHECK(run.step() == Actions{"latest 2", "poll save", "latest 4", "prune"});

    Run bad({.save_every = 2});
    bad.start();
    bad.step();
    bad.step();
    CHECK(bad.step(kNaN) == Actions{"warn", "poll save", "latest 2", "prune"});
    bad.links = false;
    CHECK(bad.step(kNaN) == Actions{"warn", "roll back 1"});
    CHECK(bad.step(kNaN) == Actions{"warn", "roll back 1", "give up"});
  }

  TEST_CASE("stopped while losses are not finite: an older run's latest is none of this run's") {
    Run run({});
    run.see(Started{.state = {}, .has_latest = true, .old_run = true});
    run.step();
    run.step(kNaN);
    CHECK(run.end(true) ==
          Actions{"go on", "save 2", "finish save", "latest 2", "prune", "require saved", "go on", "write adapter"});
  }

  TEST_CASE("stopped while losses are not finite: latest does not stay at the save that was pending") {
    Run run({.save_every = 2});
    run.start();
    run.step();
    run.step();
    run.writes_at_once = false;
    run.step(kNaN);
    CHECK(run.end(true) == Actions{"finish save", "latest 2", "prune", "go on", "roll back 1", "write adapter"});
  }

  TEST_CASE("stopped before its first step, a run from another folder's checkpoint is saved in its own") {
    RunRules rules{.continues = true};
    for (const bool is_here : {true, false}) {
      Run run(rules);
      run.see(Started{.state = {.step = 2}, .is_saved = true, .is_here = is_here});
      const auto at_the_end = run.end(true);
      CHECK((std::find(at_the_end.begin(), at_the_end.end(), "save 2") != at_the_end.end()) != is_here);
    }
  }

  TEST_CASE("a run that is stopped while losses are not finite keeps its checkpoint, or saves what there is") {
    Run kept({.save_every = 1});
    kept.start();
    kept.step();
    kept.writes_at_once = false;
    kept.step(kNaN);
    CHECK(kept.end(true) == Actions{"finish save", "latest 1", "prune", "go on", "roll back 0", "write adapter"});
    Run first({});
    first.start();
    first.step(kNaN);
    CHECK(first.end(true) ==
          Actions{"go on", "save 1", "finish save", "latest 1", "prune", "require saved", "go on", "write adapter"});
  }

  TEST_CASE("the last loss is not finite: nothing is saved or exported, once the pending save is done") {
    Run run({.save_every = 1});
    run.start();
    run.step();
    run.writes_at_once = false;
    run.step(2, true);
    run.probed = kNaN;
    CHECK(run.end() == Actions{"probe 2", "finish save", "latest 1", "prune", "give up"});
  }

  TEST_CASE("a save that fails: the run goes on, the former best is the best again, the last save must not fail") {
    Run run(validating(/*save_every=*/2));
    run.start();
    run.step();
    run.step();
    run.step();
    run.value = 4;
    run.saves = false;
    CHECK(run.step() == Actions{"save 4", "validate 4", "tell validation 4", "amend 4"});
    CHECK(run.life.validation.best_step == 4);
    CHECK(run.step() == Actions{"poll save"});
    CHECK(run.life.validation.best_step == 2);
    CHECK(run.life.validation.best_value == 5);
    run.value = 4.5;
    run.saves = true;
    run.step();
    CHECK(run.step() == Actions{"poll save", "latest 6", "best 6", "prune"});
    run.saves = false;
    CHECK(run.end(true) == Actions{"save 7", "finish save", "require saved"});
    CHECK(run.is_over);
  }

  TEST_CASE("a save that fails falls back to the newest best that was saved, though overtaken") {
    Run run(validating());
    run.start();
    run.step();
    run.step();
    run.step();
    CHECK(run.life.saved_best.best_step == 2);
    run.value = 4;
    run.writes_at_once = false;
    run.step();  // the best, whose save goes on
    run.step();
    run.value = 3;
    run.saves = false;
    run.step();  // a better one: the save of step 4 fails before the one of step 6 begins
    CHECK(run.life.validation.best_step == 6);
    run.writes_at_once = true;
    run.step();
    CHECK(run.life.validation.best_step == 2);
    // Values of other data do not compare.
    Run other(validating());
    other.start();
    other.step();
    other.saves = false;
    other.step();
    other.step();
    CHECK(other.life.validation.best_step == -1);
    CHECK(std::isnan(other.life.validation.best_value));
  }

  TEST_CASE("a checkpoint that cannot be amended is no best") {
    auto rules = validating(/*save_every=*/2);
    rules.continues = true;
    Run run(rules);
    run.see(Started{.state = {.step = 2, .validation_due = true}, .is_saved = true, .is_here = true});
    run.amends = false;
    CHECK(run.see(Ready{true}) == Actions{"validate 2", "tell validation 2", "amend 2"});
    CHECK(run.life.validation.best_step == -1);
  }

  TEST_CASE("no state is the best while losses are not finite") {
    Run run(validating());
    run.start();
    run.step();
    CHECK(run.step(kNaN) == Actions{"warn", "validate 2", "tell validation 2"});
    CHECK(run.life.validation.best_step == -1);
  }

  TEST_CASE("--patience: the validation that ends the run is its last one") {
    auto rules = validating();
    rules.validation = {.patience = 1};
    Run run(rules);
    run.start();
    run.step();
    run.step();
    run.step();
    run.value = 6;
    CHECK(run.step() == Actions{"validate 4", "tell validation 4"});
    CHECK(fsdp::out_of_patience(run.life.validation, rules.validation));
    CHECK(run.end() == Actions{"probe 4", "save 4", "finish save", "latest 4", "prune", "require saved", "go on",
                               "write adapter", "amend 4", "prune"});
  }

  TEST_CASE("a run of a sweep that falls behind saves its state and is not validated again") {
    auto rules = validating();
    rules.validation = {};
    Run run(rules);
    run.start();
    run.step();
    run.step();
    run.step();
    CHECK_FALSE(fsdp::ends_early(run.life, rules));
    run.behind = true;
    CHECK(run.step() == Actions{"validate 4", "tell validation 4"});
    CHECK(fsdp::ends_early(run.life, rules));
    CHECK(run.end() ==
          Actions{"probe 4", "save 4", "finish save", "latest 4", "prune", "require saved", "go on", "write adapter"});
  }

  TEST_CASE("the validation after the last step ends no run") {
    auto rules = validating();
    rules.validation = {};
    Run run(rules);
    run.start();
    run.step();
    run.behind = true;
    run.end();
    CHECK_FALSE(fsdp::ends_early(run.life, rules));
  }

  TEST_CASE("another metric or other data: the former best stays as a regular checkpoint, patience begins anew") {
    auto rules = validating();
    rules.continues = true;
    rules.validation.patience = 3;
    fsdp::ValidationState known;
    known.step = known.best_step = 2;
    known.set = "other";
    known.best_value = known.patience_value = 1;
    known.without_improvement = 2;
    Run run(rules);
    run.see(Started{.state = {.step = 2, .validation = known}, .is_saved = true, .another_run = true});
    CHECK(run.life.validation.without_improvement == 0);
    CHECK(std::isnan(run.life.validation.patience_value));
    run.life.step = 3;
    CHECK(run.see(StepDone{}) == Actions{});
    run.life.step = 4;
    CHECK(run.see(StepDone{}) == Actions{"validate 4", "keep for good 2", "tell validation 4", "save for best 4"});
  }
}
