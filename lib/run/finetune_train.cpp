// The training loop of a job: steps, saves, validations, and how it ends.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lib/base/file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/run/evaluate.hpp"
#include "lib/run/finetune_job.hpp"
#include "lib/run/text.hpp"
#include "lib/run/throughput.hpp"
#include "lib/tensor/host_allocator.hpp"

namespace fsdp::detail {

RunManifest FinetuneJob::manifest() const {
  RunManifest manifest;
  manifest.config = config_;
  manifest.state = trainer_->state();
  manifest.options = saved_options_;
  manifest.options["decay-all"] = options_.decay_all ? "true" : "false";
  manifest.options["total-batch-size"] = std::to_string(batches_.rows_per_step);
  manifest.data = {
      {"train", options_.train_data}, {"rows", train_reader_->num_rows()}, {"shuffle", !options_.no_shuffle}};
  if (!tokenizer_name_.empty()) {
    std::error_code error;
    const auto absolute = std::filesystem::absolute(tokenizer_name_, error);
    manifest.data["tokenizer"] = tokenizer_name_ == "gpt2" ? tokenizer_name_ : absolute.string();
  }
  if (!options_.model.directory.empty()) manifest.data["weights"] = options_.model.directory;
  manifest.world_size = world_.size();
  return manifest;
}

double FinetuneJob::current_lr() const {
  return plan_schedule(options_, plan_steps(options_, train_reader_->num_rows(), batches_.rows_per_step))
      .at(std::max<std::int64_t>(1, trainer_->state().step));
}

void FinetuneJob::start_save(bool final_one) {
  finish_save_if_written(true);
  was_disturbed_ = true;
  saver_->start(manifest(), current_lr());
  last_save_ = Clock::now();
  if (final_one) finish_save_if_written(true);
}

/// Makes a written checkpoint appear once all ranks are done with it. Collective.
bool FinetuneJob::finish_save_if_written(bool wait) {
  if (!saver_->under_way()) return false;
  if (!wait && world_.all_reduce(saver_->written() ? 0.0 : 1.0, Reduce::max) > 0) return false;
  const auto result = saver_->finish();
  save_seconds_ = std::max(save_seconds_, result.seconds);
  save_error_ = result.error;
  if (result.saved) {
    last_checkpoint_ = result.path;
    progress_->line(fmt::format("saved     {}   {} in {:.1f} s (training waited {:.2f} s)", result.path.string(),
                                format_bytes(static_cast<double>(result.size_bytes)), result.seconds,
                                result.blocked_seconds));
  } else if (world_.rank() == 0) {
    log_.warning(fmt::format("saving failed, the last good checkpoint stays: {}", result.error));
  }
  return true;
}

void FinetuneJob::validate(std::int64_t step) {
  if (!val_reader_) return;
  was_disturbed_ = true;
  const auto result = evaluate_rows(*runtime_, *val_reader_, batches_.rows_per_micro_batch);
  last_val_loss_ = result.loss;
  progress_->line(fmt::format("eval   {:>6}   loss {:.4f}   perplexity {:.1f}   {} tokens in {:.1f} s", step,
                              result.loss, result.perplexity, format_count(result.tokens), result.seconds));
  if (metrics_) {
    metrics_->add({{"step", step},
                   {"val_loss", result.loss},
                   {"val_perplexity", result.perplexity},
                   {"val_tokens", result.tokens},
                   {"eval_seconds", result.seconds}});
  }
}

bool FinetuneJob::out_of_time() const {
  // One more step and the last save must fit, with something in hand for slower ones.
  const double needed = 1.5 * slowest_step_seconds_ + 2.0 * save_seconds_ + 5.0;
  if (options_.time_limit_seconds > 0 && seconds_since(begin_) + needed > options_.time_limit_seconds) return true;
  if (const auto end = scheduler_end_time()) {
    const auto left = std::chrono::duration<double>(*end - std::chrono::system_clock::now()).count();
    if (left < needed) return true;
  }
  return false;
}

bool FinetuneJob::save_is_due(bool last_step) {
  const auto step = trainer_->state().step;
  if (last_step) return false;  // the final save follows
  bool due = options_.save_every > 0 && step % options_.save_every == 0;
  if (options_.save_interval_minutes > 0 && seconds_since(last_save_) >= 60 * options_.save_interval_minutes)
    due = true;
  if (options_.save_interval_minutes <= 0) return due;
  return world_.all_reduce(due ? 1.0 : 0.0, Reduce::max) > 0;
}

void FinetuneJob::log_step(const StepReport& step, std::int64_t total_steps) {
  const double rate = static_cast<double>(step.tokens) / step.seconds;
  nlohmann::json record{{"step", step.step},
                        {"loss", step.loss},
                        {"grad_norm", step.grad_norm},
                        {"lr", step.lr},
                        {"tokens", step.tokens},
                        {"step_seconds", step.seconds},
                        {"tokens_per_second", rate},
                        {"data_wait_seconds", step.data_wait_seconds},
                        {"peak_memory_bytes", static_cast<std::int64_t>(step.peak_memory_bytes)},
                        {"peak_rss_bytes", static_cast<std::int64_t>(step.peak_rss_bytes)}};
  const double mfu =
      peak_flops_ > 0 ? rate * flops_per_token(config_, train_reader_->tokens_per_row()) / peak_flops_ : 0;
  if (peak_flops_ > 0) record["mfu"] = mfu;
  if (!device_.device.is_cpu()) {
    record["reserved_memory_bytes"] = static_cast<std::int64_t>(step.reserved_bytes);
    record["alloc_retries"] = static_cast<std::int64_t>(step.alloc_retries);
  }
  if (runtime_->policy().precision.param_dtype == at::kHalf) {
    record["loss_scale"] = trainer_->state().loss_scale;
    record["skipped"] = step.skipped;
  }
  const auto& counts = runtime_->engine().counts();
  record["collectives"] = {
      {"shard", {{"all_gathers", counts.shard.all_gathers}, {"reduce_scatters", counts.shard.reduce_scatters}}},
      {"replicate", {{"all_reduces", counts.replicate.all_reduces}}}};
  if (metrics_) metrics_->add(record);
  const auto rest = fmt::format("norm {:.3g}   lr {:.1e}   {} tok/s{}{}", step.grad_norm, step.lr,
                                format_count(static_cast<std::int64_t>(rate)),
                                peak_flops_ > 0 ? fmt::format("   {:.0f} % of peak", 100 * mfu) : "",
                                step.skipped ? "   skipped (fp16 overflow)" : "");
  // The line that scripts around the chess fine-tune know, and the one of a run from scratch.
  const auto line = config_.architecture == Architecture::llama
                        ? fmt::format("({}/{}) loss={:.4f} ({:.3f}s/step)   {}", step.step, total_steps, step.loss,
                                      step.seconds, rest)
                        : fmt::format("step {:>6}/{}   loss {:.4f}   {}", step.step, total_steps, step.loss, rest);
  progress_->step(step.step, total_steps, line, step.seconds);
}

/// A new run under a used name must neither mix with the old one's checkpoints nor lose them.
void FinetuneJob::set_old_run_aside() const {
  if ((restart_ && restart_->manifest.state.step > 0) || world_.rank() != 0) return;
  std::error_code error;
  const auto used = [&](const char* name) { return std::filesystem::exists(directory_ / name, error); };
  if (!used("checkpoints") && !used("metrics.jsonl")) return;
  int number = 1;
  while (std::filesystem::exists(directory_ / fmt::format("previous-{}", number), error)) ++number;
  const auto aside = directory_ / fmt::format("previous-{}", number);
  std::filesystem::create_directories(aside, error);
  for (const char* name : {"checkpoints", "metrics.jsonl", "memory.json", "loss.svg", "loss.png"}) {
    if (!error && used(name)) std::filesystem::rename(directory_ / name, aside / name, error);
  }
  if (error)
    throw IoError(aside.string() + ": cannot set the run of that name aside: " + error.message() + " (see --run-name)");
  log_.info(fmt::format("earlier   run of this name moved to {}", aside.string()));
}

ExitCode FinetuneJob::train(nlohmann::json& report) {
  set_old_run_aside();
  world_.barrier();
  saver_ = std::make_unique<CheckpointSaver>(*runtime_, trainer_->optimizer(), directory_ / "checkpoints",
                                             options_.keep_last);
  if (world_.rank() == 0)
    metrics_ = std::make_unique<MetricsFile>(directory_ / "metrics.jsonl", restart_ ? trainer_->state().step : -1);
  progress_ = std::make_unique<ProgressLine>(log_, world_.rank() == 0 && !options_.runtime.quiet, options_.log_every);
  peak_flops_ = world_.all_reduce(peak_flops(device_, runtime_->policy().precision.param_dtype), Reduce::sum);
  reset_host_memory_peak();  // the matrices of that measurement are no part of training
  const auto total_steps = plan_steps(options_, train_reader_->num_rows(), batches_.rows_per_step);
  const bool by_epochs = options_.max_steps <= 0;
  const auto total_samples = by_epochs ? static_cast<std::int64_t>(std::llround(
                                             options_.max_epochs * static_cast<double>(train_reader_->num_rows())))
                                       : std::numeric_limits<std::int64_t>::max();
  last_save_ = Clock::now();
  bool stopped = false;
  bool saved_this_step = restart_ && restart_->foreign == nullptr;
  while (trainer_->state().step < total_steps && trainer_->state().samples < total_samples) {
    const auto step = trainer_->step(total_samples - trainer_->state().samples,
                                     [&] { return signal_.received() != 0 || out_of_time(); });
    if (step.stopped) {
      stopped = true;
      break;
    }
    saved_this_step = false;
    if (std::isnan(first_loss_)) first_loss_ = step.loss;
    last_loss_ = step.loss;
    last_step_ = step;
    note_step_memory(step);
    slowest_step_seconds_ = std::max(slowest_step_seconds_, step.seconds);
    log_step(step, total_steps);
    const bool last = trainer_->state().step >= total_steps || trainer_->state().samples >= total_samples;
    finish_save_if_written(false);
    if (save_is_due(last)) {
      start_save(false);
      saved_this_step = true;
    }
    if (options_.eval_every > 0 && !last && trainer_->state().step % options_.eval_every == 0)
      validate(trainer_->state().step);
  }
  // Exit code 85 promises a checkpoint, whatever was said about the last one.
  const bool keep = stopped || !options_.no_final_save;
  if (!saved_this_step && keep) {
    start_save(true);
  } else {
    finish_save_if_written(true);
  }
  if (!save_error_.empty() && keep) throw IoError("the last checkpoint could not be saved: " + save_error_);
  if (!stopped) validate(trainer_->state().step);
  progress_->finish();
  if (world_.rank() == 0) {
    try {
      draw_loss_curve(
          directory_, fmt::format("{} {} x {}", architecture_name(config_), config_.num_layers, config_.embed_size),
          fmt::format("{}, {} ranks, {}", options_.sharding.sharding, world_.size(), options_.sharding.precision));
    } catch (const Error& error) {
      log_.warning(fmt::format("no loss curve: {}", error.what()));  // the training is worth more
    }
  }
  write_trace();
  report_memory(report);
  if (last_checkpoint_.empty() && restart_) last_checkpoint_ = restart_->candidates.front();
  if (!stopped) {
    const bool is_saved = (saved_this_step || keep) && save_error_.empty();
    if (!save_final(is_saved ? last_checkpoint_ : std::filesystem::path())) stopped = true;
    if (!options_.save_final_full.empty()) report["full_checkpoint"] = options_.save_final_full;
    if (!options_.save_final_hf.empty()) report["hf_directory"] = options_.save_final_hf;
  }
  report["steps"] = trainer_->state().step;
  report["samples"] = trainer_->state().samples;
  report["first_loss"] = first_loss_;
  report["loss"] = last_loss_;
  if (val_reader_) report["val_loss"] = last_val_loss_;
  report["checkpoint"] = last_checkpoint_.string();
  report["metrics"] = (directory_ / "metrics.jsonl").string();
  report["seconds"] = seconds_since(begin_);
  report["stopped_early"] = stopped;
  if (stopped) {
    log_.info(fmt::format("stopped   {}   step {} of {}; continue with --restart-checkpoint-file latest",
                          signal_.received() != 0 ? fmt::format("by signal {}", signal_.received())
                                                  : "out of time, or another rank was asked to",
                          trainer_->state().step, total_steps));
    return ExitCode::stopped_early;
  }
  log_.info(fmt::format("done      {} steps in {}   loss {:.4f} -> {:.4f}   {}", trainer_->state().step,
                        format_duration(seconds_since(begin_)), first_loss_, last_loss_,
                        (directory_ / "loss.svg").string()));
  return ExitCode::ok;
}

void FinetuneJob::write_trace() {
  if (options_.runtime.trace_file.empty()) return;
  const auto parts = world_.gather(runtime_->engine().trace().events_json(world_.rank()), 0);
  if (world_.rank() != 0) return;
  std::string text = "[";
  for (std::size_t r = 0; r < parts.size(); ++r) text += (r == 0 ? "\n" : ",\n") + parts[r];
  replace_file(options_.runtime.trace_file, text + "\n]\n");
  log_.info("trace     " + options_.runtime.trace_file +
            "   open it in Perfetto (ui.perfetto.dev) or chrome://tracing");
}

}  // namespace fsdp::detail
