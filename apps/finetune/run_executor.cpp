#include "apps/finetune/run_executor.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/checkpoints/best.hpp"
#include "lib/training/checkpoints/save.hpp"

namespace fsdp::detail {
namespace {

RunRules rules_of(const RunSetup& setup, bool continues) {
  const auto& options = setup.options;
  return {.save_every = setup.save_every,
          .saves_pass = options.interval_saves_pass,
          .eval_every = setup.eval_every,
          .has_validation = setup.validates(),
          .final_save = !options.no_final_save,
          .exports = exports_at_the_end(options),
          .ends_with_best = options.validation.ends_with_best,
          .strips = options.keep_optimizer > 0,
          .continues = continues,
          .validation = validation_rules(setup)};
}

/// Advice where the link `latest` cannot be made, for a warning.
std::string what_latest_is(const std::filesystem::path& checkpoints) {
  std::error_code error;
  const auto latest = checkpoints / "latest";
  const bool is_folder = std::filesystem::is_directory(latest, error) && !std::filesystem::is_symlink(latest, error);
  return std::string(
             ": --restart latest, fsdp-eval and fsdp-ckpt-convert take the newest step-N where latest is no "
             "link") +
         (is_folder ? "; the folder of that name, such as a copy of the run has, is left as it is: remove it, and the "
                      "next checkpoint makes the link"
                    : "");
}

}  // namespace

RunExecutor::RunExecutor(const RunContext& context, RunRecord& record, Validation& validation, MemoryReporter& memory,
                         bool continues, Outputs outputs)
    : context_(context),
      record_(record),
      validation_(validation),
      memory_(memory),
      outputs_(std::move(outputs)),
      rules_(rules_of(context.setup, continues)),
      life_(context.setup.options.max_nonfinite_steps) {}

void RunExecutor::start(const std::filesystem::path& taken, bool is_saved) {
  const auto& state = context_.trainer.state();
  const auto folder = context_.setup.checkpoints();
  // Only rank 0 looks, because other hosts may see a shared file system with a delay of seconds.
  const bool looks = context_.world.rank() == 0;
  std::error_code error;
  const bool is_here = looks && is_saved && !taken.empty() &&
                       std::filesystem::equivalent(taken, folder / checkpoint_name(state.step), error) && !error;
  const bool has_latest = looks && !checkpoints_of_run(folder).empty();
  handle(run_event::Started{.state = state,
                            .is_saved = is_saved,
                            .is_here = any_rank(context_.world, is_here),
                            .has_latest = any_rank(context_.world, has_latest),
                            .old_run = record_.keeps_old_run(),
                            .another_run = counts_for_another(context_.setup, state.validation)});
}

void RunExecutor::after_fisher_batch() { handle(run_event::FisherBatch{interval_is_over()}); }

bool RunExecutor::needs_state() {
  interval_over_.reset();
  if (needs_state_of(context_.trainer.state().step, life_, rules_)) return true;
  return *(interval_over_ = interval_is_over());
}

void RunExecutor::step_measured(const StepReport& step) {
  record_.check_owner(false);
  handle(run_event::StepMeasured{step});
}

void RunExecutor::step_done(bool last) {
  const bool asks = !last && life_.is_open;
  handle(run_event::StepDone{.is_last = last,
                             .interval_over = asks && (interval_over_ ? *interval_over_ : interval_is_over())});
}

bool RunExecutor::interval_is_over() {
  const auto minutes = context_.setup.options.save_interval_minutes;
  return minutes > 0 && any_rank(context_.world, record_.seconds_since_save() >= 60 * minutes);
}

void RunExecutor::handle(const RunEvent& event) {
  const auto actions = next_actions(life_, event, rules_);
  auto& state = context_.trainer.state();
  state.validation = life_.validation;
  state.validation_due = life_.validation_due;
  for (const auto& action : actions) execute(action);
}

void RunExecutor::execute(const RunAction& action) {
  using enum RunActionKind;
  using namespace run_event;
  context_.log.debug("action    " + to_string(action));
  const auto folder = context_.setup.checkpoints();
  switch (action.kind) {
    case open: {
      const auto best = record_.open();
      return handle(Opened{best.value, best.step});
    }
    case warn:
      if (context_.world.rank() != 0) return;
      context_.progress.finish();
      return context_.log.warning(action.text);
    case save:
    case save_for_best:
    case save_for_now:
      record_.start_save(action.kind != save);
      return handle(SaveBegun{});
    case poll_save:
      return end_save(false);
    case finish_save:
      return end_save(true);
    case amend:
      if (const auto done = record_.amend_checkpoint()) handle(Amended{*done});
      return;
    case point_latest:
    case roll_back: {
      const bool done = make_link(action);
      return handle(Linked{action.step, every_rank(context_.world, done)});
    }
    case point_best:
      make_link(action);
      return;
    case keep_for_good:
      return record_.keep_for_good(action.step);
    case prune:
      return handle(Pruned{record_.prune(life_.proven_step)});
    case strip:
    case finish_strip:
      return record_.strip(life_.proven_step, action.kind == finish_strip);
    case validate: {
      const bool whole = validation_.run([&] {
        if (life_.pending) end_save(false);
      });
      return whole ? handle(Validated{validation_.deciding_value(), validation_.falls_behind()})
                   : handle(ValidationCut{});
    }
    case tell_validation:
      return validation_.tell(verdict_words(life_.verdict, life_.validation, rules_.validation));
    case probe:
      memory_.disturb();
      return handle(Probed{std::isfinite(context_.trainer.probe_loss())});
    case give_up:
      end_without_state(action.text);
    case require_saved:
      if (!record_.save_error().empty()) throw IoError(action.text + ": " + record_.save_error());
      return;
    case write_adapter:
      return outputs_.write_adapter();
    case export_files:
      return handle(Exported{outputs_.export_files()});
    case go_on:
      return handle(GoOn{});
  }
}

void RunExecutor::end_save(bool wait) {
  if (!life_.pending) return;
  bool has_latest = false;
  const auto saved = record_.finish_save(wait, [&] {
    for (const auto& action : links_of_pending(life_)) {
      context_.log.debug("action    " + to_string(action));
      const bool done = make_link(action);
      has_latest = has_latest || (done && action.kind == RunActionKind::point_latest);
    }
  });
  if (saved) handle(run_event::SaveWritten{*saved, any_rank(context_.world, has_latest)});
}

bool RunExecutor::make_link(const RunAction& action) {
  if (context_.world.rank() != 0) return true;
  const auto folder = context_.setup.checkpoints();
  std::string advice;
  try {
    if (action.kind == RunActionKind::point_best) {
      point_best_to(folder, action.step);
    } else if (action.kind == RunActionKind::point_latest) {
      advice = what_latest_is(folder);
      point_latest_to(folder, action.step);
    } else {
      const auto where = roll_back_latest(folder, life_.newest_step, action.step);
      if (!where.empty())
        context_.log.warning(fmt::format("the newest checkpoint may be bad: latest is {} again", where));
    }
    return true;
  } catch (const std::exception& error) {  // some file systems have no links; the checkpoints are there all the same
    if (warned_.insert(action.kind).second) context_.log.warning(error.what() + advice);
    return false;
  }
}

void RunExecutor::end_without_state(const std::string& why) {
  context_.progress.finish();
  std::string advice;
  if (context_.world.rank() == 0 && life_.is_open) {
    std::error_code error;
    const auto folder = context_.setup.checkpoints();
    try {
      const auto proven = roll_back_latest(folder, life_.newest_step, life_.proven_step);
      if (!proven.empty()) record_.set_last_checkpoint(proven);
    } catch (const std::exception& failure) {
      context_.log.warning(failure.what());
    }
    const auto saved = checkpoints_of_run(folder);
    advice = saved.empty() ? std::string("; no checkpoint was saved")
                           : fmt::format("; {} is the newest checkpoint to go on from",
                                         std::filesystem::weakly_canonical(saved.front(), error).string());
  } else if (context_.world.rank() == 0 && record_.keeps_old_run()) {
    advice = fmt::format("; the earlier run in {} is as it was", context_.setup.directory.string());
  }
  throw RuntimeFailure(context_.world.broadcast_text(
      why + advice + ". A smaller --lr, --clip-grad-norm, a longer --warmup-steps or float32 may help", 0));
}

std::string RunExecutor::why_early() const {
  if (!ends_early() || life_.step >= context_.setup.total_steps) return "";
  if (life_.is_pruned) return validation_.why_behind();
  return why_out_of_patience(context_.setup, life_.validation, rules_.validation);
}

}  // namespace fsdp::detail
