// The training loop of a job: which steps it makes, what becomes of a run of the same name, and how it ends.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lib/base/path_below.hpp"
#include "lib/base/text_format.hpp"
#include "lib/jobs/finetune/finetune_job.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/runtime/text.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/train/throughput.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

bool has_entries(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && !fs::is_empty(directory, error);
}

bool has_bytes(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return !error && size > 0;
}

}  // namespace

/// Not the continuation of what lies in the run's folder: from nothing, or from weights that are not its own.
bool FinetuneJob::begins_a_run() const {
  if (!restart_) return true;
  if (restart_->manifest.state.step > 0) return false;
  return !path_below(restart_->candidates.front(), directory_ / "checkpoints");
}

bool FinetuneJob::old_run_is_there() const {
  const bool there =
      world_.rank() == 0 && (has_entries(directory_ / "checkpoints") || has_bytes(directory_ / "metrics.jsonl"));
  return any_rank(world_, there);
}

/// A new run under a used name must neither mix with the old one's checkpoints nor lose them.
void FinetuneJob::set_old_run_aside() const {
  if (world_.rank() != 0) return;
  std::error_code error;
  int number = 1;
  while (fs::exists(directory_ / fmt::format("previous-{}", number), error)) ++number;
  const auto aside = directory_ / fmt::format("previous-{}", number);
  fs::create_directories(aside, error);
  std::vector<std::string> moved;
  for (const char* name : {"checkpoints", "metrics.jsonl", "memory.json", "loss.svg", "loss.png"}) {
    std::error_code absent;
    if (error || !fs::exists(directory_ / name, absent)) continue;
    fs::rename(directory_ / name, aside / name, error);
    if (!error) moved.emplace_back(name);
  }
  if (error) {
    // All of the old run or nothing of it.
    std::error_code ignored;
    for (const auto& name : moved) fs::rename(aside / name, directory_ / name, ignored);
    fs::remove(aside, ignored);
    throw IoError(aside.string() + ": cannot set the run of that name aside: " + error.message() + " (see --run-name)");
  }
  log_.info(fmt::format("earlier   run of this name moved to {}", aside.string()));
}

/// From here on this job writes into the run's folder. A new run does so once it has made a step, so that one that
/// fails at once leaves an older run where it is.
void FinetuneJob::begin_recording() {
  if (owner_) owner_->check(true);
  if (begins_a_run() && old_run_is_there()) set_old_run_aside();
  world_.barrier();
  saver_ = std::make_unique<CheckpointSaver>(*runtime_, trainer_->optimizer(), directory_ / "checkpoints",
                                             options_.keep_last);
  if (world_.rank() == 0) {
    const auto resume_step = begins_a_run() ? std::int64_t{-1} : restart_->manifest.state.step;
    metrics_ = std::make_unique<MetricsFile>(directory_ / "metrics.jsonl", resume_step, log_);
  }
}

/// Ends the job: no state that it has now is worth saving. \param why  a sentence without its end
void FinetuneJob::give_up(const std::string& why) {
  progress_->finish();
  if (saver_) finish_save_if_written(true);
  std::string advice;
  if (world_.rank() == 0 && saver_) {
    const auto proven = saver_->doubt();
    std::error_code error;
    const auto latest = fs::weakly_canonical(directory_ / "checkpoints" / "latest", error);
    if (!proven.empty()) last_checkpoint_ = proven;
    advice = fs::exists(latest, error) ? fmt::format("; {} is the newest checkpoint to go on from", latest.string())
                                       : std::string("; no checkpoint was saved");
  } else if (world_.rank() == 0 && old_run_is_there_) {
    advice = fmt::format("; the earlier run in {} is as it was", directory_.string());
  }
  throw RuntimeFailure(world_.broadcast_text(
      why + advice + ". A smaller --lr, --clip-grad-norm, a longer --warmup-steps or float32 may help", 0));
}

/// What a step tells about the state that it began with.
void FinetuneJob::judge_step(const StepReport& step) {
  const auto warning = nonfinite_.add(step);
  if (!warning.empty() && world_.rank() == 0) {
    progress_->finish();
    log_.warning(warning);
  }
  try {
    if (saver_ && std::isfinite(step.loss)) {
      saver_->prove(step.step - 1);
    } else if (saver_) {
      const auto where = saver_->doubt();
      if (!where.empty()) log_.warning(fmt::format("the newest checkpoint may be bad: latest is {} again", where));
    }
  } catch (const std::exception& error) {
    log_.warning(fmt::format("{}: {}", (directory_ / "checkpoints").string(), error.what()));
  }
  if (nonfinite_.too_many()) give_up(nonfinite_.words());
}

/// \return true when it was asked to stop
bool FinetuneJob::train_steps(std::int64_t total_steps, std::int64_t total_samples) {
  const auto& state = trainer_->state();
  while (state.step < total_steps && state.samples < total_samples) {
    const auto step =
        trainer_->step(total_samples - state.samples, [&] { return signal_.received() != 0 || out_of_time(); });
    if (step.stopped) return true;
    if (owner_) owner_->check(false);
    saved_this_step_ = false;
    judge_step(step);
    if (!saver_ && !step.skipped) begin_recording();
    if (std::isnan(first_loss_)) first_loss_ = step.loss;
    last_loss_ = step.loss;
    last_step_ = step;
    note_step_memory(step);
    slowest_step_seconds_ = std::max(slowest_step_seconds_, step.seconds);
    log_step(step, total_steps);
    if (!saver_) continue;
    const bool last = state.step >= total_steps || state.samples >= total_samples;
    finish_save_if_written(false);
    if (save_is_due(last)) {
      start_save(false);
      saved_this_step_ = true;
    }
    if (options_.eval_every > 0 && !last && state.step % options_.eval_every == 0) validate(state.step);
  }
  return false;
}

/// The checkpoint of the state at the end, where it is to be kept.
void FinetuneJob::save_at_the_end(bool stopped) {
  if (!saver_) return;  // no step was made, and an older run has the folder
  // Exit code 85 promises a checkpoint, whatever was said about the last one.
  const bool keep = stopped || !options_.no_final_save;
  const bool exports = !stopped && !(options_.save_final_full.empty() && options_.save_final_hf.empty());
  if (!stopped && ((!saved_this_step_ && keep) || exports)) {
    // The last update has had no step after it that would show what it led to.
    was_disturbed_ = true;
    const double loss = trainer_->loss_ahead();
    if (!std::isfinite(loss))
      give_up(fmt::format("the model after step {} has a loss that is not finite: it is neither saved nor exported",
                          trainer_->state().step));
    saver_->prove(trainer_->state().step);
  }
  if (stopped && nonfinite_.any()) {
    // The checkpoint before is as far as this run got, unless there is none at all.
    finish_save_if_written(true);
    std::error_code error;
    const bool there = every_rank(world_, fs::exists(directory_ / "checkpoints" / "latest", error));
    if (there) return;
  }
  if (!saved_this_step_ && keep) {
    start_save(true);
  } else {
    finish_save_if_written(true);
  }
  if (!save_error_.empty() && keep) throw IoError("the last checkpoint could not be saved: " + save_error_);
  saved_this_step_ = (saved_this_step_ || keep) && save_error_.empty();
}

ExitCode FinetuneJob::train(nlohmann::json& report) {
  progress_ = std::make_unique<ProgressLine>(log_, world_.rank() == 0 && !options_.runtime.quiet, options_.log_every);
  old_run_is_there_ = begins_a_run() && old_run_is_there();
  if (!old_run_is_there_) begin_recording();
  peak_flops_ = world_.all_reduce(peak_flops(device_, runtime_->policy().precision.param_dtype), Reduce::sum);
  reset_host_memory_peak();  // the matrices of that measurement are no part of training
  const auto total_steps = plan_steps(options_, train_loader_->num_rows(), batches_.rows_per_step);
  const bool by_epochs = options_.max_steps <= 0;
  const auto total_samples = by_epochs ? static_cast<std::int64_t>(std::llround(
                                             options_.max_epochs * static_cast<double>(train_loader_->num_rows())))
                                       : std::numeric_limits<std::int64_t>::max();
  last_save_ = Clock::now();
  saved_this_step_ = restart_ && restart_->external == nullptr;
  bool stopped = train_steps(total_steps, total_samples);
  save_at_the_end(stopped);
  if (!stopped) validate(trainer_->state().step);
  progress_->finish();
  finish_outputs(report, stopped);
  return conclude(report, stopped, total_steps);
}

/// Everything beside the checkpoint. What fails here of what was not asked for is a warning.
void FinetuneJob::finish_outputs(nlohmann::json& report, bool& stopped) {
  if (world_.rank() == 0 && metrics_) {
    try {
      draw_loss_curve(directory_,
                      fmt::format("{} {} x {}", architecture_name(config_), config_.num_layers, config_.embed_size),
                      fmt::format("{}, {}, {}", options_.sharding.sharding, format_count_of(world_.size(), "rank"),
                                  options_.sharding.precision));
    } catch (const std::exception& error) {
      log_.warning(fmt::format("no loss curve: {}", error.what()));  // the training is worth more
    }
  }
  write_trace();
  report_memory(report);
  if (last_checkpoint_.empty() && restart_) last_checkpoint_ = restart_->candidates.front();
  if (stopped) return;
  if (!save_final(saved_this_step_ ? last_checkpoint_ : fs::path())) stopped = true;
  if (!options_.save_final_full.empty()) report["full_checkpoint"] = options_.save_final_full;
  if (!options_.save_final_hf.empty()) report["hf_directory"] = options_.save_final_hf;
}

ExitCode FinetuneJob::conclude(nlohmann::json& report, bool stopped, std::int64_t total_steps) {
  report["steps"] = trainer_->state().step;
  report["samples"] = trainer_->state().samples;
  report["ids_not_trained_on"] = train_loader_->ids_left_out(train_loader_->num_rows());
  report["first_loss"] = first_loss_;
  report["loss"] = last_loss_;
  if (val_loader_) report["val_loss"] = last_val_loss_;
  report["checkpoint"] = last_checkpoint_.string();
  report["metrics"] = (directory_ / "metrics.jsonl").string();
  report["seconds"] = seconds_since(begin_);
  report["stopped_early"] = stopped;
  if (stopped) {
    if (!trace_error_.empty()) log_.warning("no trace: " + trace_error_);
    const auto reason = reason_to_stop();
    log_.info(
        saver_ ? fmt::format("stopped   {}   step {} of {}; continue with --restart-checkpoint-file latest", reason,
                             trainer_->state().step, total_steps)
               : fmt::format("stopped   {}   before the first step of {}: nothing to save, and the earlier run in {} "
                             "is as it was; start again in the same way",
                             reason, total_steps, directory_.string()));
    return ExitCode::stopped_early;
  }
  const auto problem = world_.broadcast_text(trace_error_, 0);
  if (!problem.empty()) throw IoError("the run is done and saved, but its --trace is not: " + problem);
  if (last_step_.step == 0) {
    log_.info(fmt::format("done      nothing to do: step {} of {}; {} N goes on", trainer_->state().step, total_steps,
                          options_.max_steps <= 0 ? "--max-epochs" : "--max-steps"));
    return ExitCode::ok;
  }
  log_.info(fmt::format("done      {} in {}   loss {:.4f} -> {:.4f}   {}",
                        format_count_of(trainer_->state().step, "step"), format_duration(seconds_since(begin_)),
                        first_loss_, last_loss_, (directory_ / "loss.svg").string()));
  return ExitCode::ok;
}

}  // namespace fsdp::detail
