#include "apps/finetune/checkpointing.hpp"

#include <fmt/format.h>

#include <cmath>

#include "apps/finetune/validation.hpp"
#include "lib/base/error.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp::detail {

void HealthCheck::after_step(const StepReport& step, bool) {
  record_.check_owner(false);
  const auto warning = nonfinite_.add(step);
  if (!warning.empty() && context_.world.rank() == 0) {
    context_.progress.finish();
    context_.log.warning(warning);
  }
  try {
    if (record_.is_open() && std::isfinite(step.loss)) {
      record_.prove(step.step - 1);
    } else if (record_.is_open()) {
      const auto where = record_.doubt();
      if (!where.empty())
        context_.log.warning(fmt::format("the newest checkpoint may be bad: latest is {} again", where));
    }
  } catch (const std::exception& error) {
    context_.log.warning(fmt::format("{}: {}", context_.setup.checkpoints().string(), error.what()));
  }
  if (nonfinite_.too_many()) record_.give_up(nonfinite_.words());
  if (!record_.is_open() && !step.skipped) record_.open();
}

void HealthCheck::prove_the_last_update() {
  const double loss = context_.trainer.probe_loss();
  const auto step = context_.trainer.state().step;
  if (!std::isfinite(loss)) {
    record_.give_up(
        fmt::format("the model after step {} has a loss that is not finite: it is neither saved nor exported", step));
  }
  record_.prove(step);
}

bool Checkpoints::is_due(bool last) {
  const auto& options = context_.setup.options;
  const auto step = context_.trainer.state().step;
  if (last) return false;  // the final save follows
  bool due = waits_ || (options.save_every > 0 && step % options.save_every == 0);
  if (interval_is_over()) due = true;
  // While losses are not finite, this state is not known to be better than the last saved one.
  waits_ = due && health_.fails();
  return due && !waits_;
}

void Checkpoints::after_step(const StepReport&, bool last) {
  is_saved_ = false;
  auto& state = context_.trainer.state();
  state.validation_due = record_.is_open() && context_.validates_here();
  if (!record_.is_open()) return;
  record_.finish_save(false);
  is_saved_ = is_due(last);
  if (is_saved_) record_.start_save(false);
  if (last || !state.validation_due || !validation_.run()) return;  // a validation follows the last step anyway
  if (is_saved_) {
    record_.amend_checkpoint();
  } else if (validation_.found_the_best()) {
    record_.start_save(false, /*only_as_best=*/true);
    is_saved_ = true;
  }
}

void Checkpoints::make_up_for_validation(const std::filesystem::path& checkpoint) {
  auto& state = context_.trainer.state();
  state.validation_due = state.validation_due && record_.is_open() && context_.validates_here();
  if (state.validation_due && validation_.run()) save_validation(checkpoint);
}

bool Checkpoints::interval_is_over() {
  const auto minutes = context_.setup.options.save_interval_minutes;
  return minutes > 0 && any_rank(context_.world, record_.seconds_since_save() >= 60 * minutes);
}

void Checkpoints::after_fisher_batch() {
  is_saved_ = false;
  if (record_.is_open()) record_.finish_save(false);
  if (!interval_is_over()) return;
  if (!record_.is_open()) record_.open();
  record_.start_save(false);
  is_saved_ = true;
}

void Checkpoints::save_at_the_end(bool stopped) {
  // Keep the measurements of the Fisher pass, which comes before the first step.
  if (stopped && !record_.is_open() && context_.trainer.state().fisher_batches > 0) record_.open();
  if (!record_.is_open()) return;  // no step was made, and an older run of this name keeps the folder
  // Exit code 85 promises a checkpoint, so --no-final-save does not apply to a stopped job.
  const bool keep = stopped || !context_.setup.options.no_final_save;
  if (!stopped && ((!is_saved_ && keep) || exports_at_the_end(context_.setup.options))) {
    memory_.disturb();
    health_.prove_the_last_update();
  }
  if (stopped && health_.fails()) {
    // Keep the previous checkpoint; a state with a loss that is not finite is saved only if there is no checkpoint at
    // all.
    record_.finish_save(true);
    std::error_code error;
    if (every_rank(context_.world, std::filesystem::exists(context_.setup.checkpoints() / "latest", error))) return;
  }
  if (!is_saved_ && keep) {
    record_.start_save(true);
  } else {
    record_.finish_save(true);
  }
  if (!record_.save_error().empty() && keep)
    throw IoError("the last checkpoint could not be saved: " + record_.save_error());
  is_saved_ = (is_saved_ || keep) && record_.save_error().empty();
}

void Checkpoints::save_validation(const std::filesystem::path& checkpoint) {
  if (!record_.is_open()) return;
  std::error_code error;
  const auto name = checkpoint_name(context_.trainer.state().step);
  // Only rank 0 looks, because other hosts may see a shared file system with a delay of seconds.
  const bool is_here = context_.world.rank() == 0 && is_saved_ && !checkpoint.empty() &&
                       std::filesystem::equivalent(checkpoint, context_.setup.checkpoints() / name, error) && !error;
  if (any_rank(context_.world, is_here)) {
    record_.amend_checkpoint();
  } else if (validation_.found_the_best()) {
    record_.start_save(true, /*only_as_best=*/true);
    if (!record_.save_error().empty()) throw IoError("the best checkpoint could not be saved: " + record_.save_error());
  }
}

}  // namespace fsdp::detail
