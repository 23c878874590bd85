// What the training loop of a job does at a step: saves, validations, records.
#include <fmt/format.h>

#include <cmath>

#include "lib/base/file.hpp"
#include "lib/base/output_file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/eval/evaluate.hpp"
#include "lib/jobs/finetune/finetune_job.hpp"
#include "lib/jobs/finetune/saved_path.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/runtime/text.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/train/throughput.hpp"

namespace fsdp::detail {

RunManifest FinetuneJob::manifest() const {
  RunManifest manifest;
  manifest.config = config_;
  manifest.state = trainer_->state();
  manifest.options = saved_options_;
  manifest.options["decay-all"] = options_.decay_all ? "true" : "false";
  manifest.options["total-batch-size"] = std::to_string(batches_.rows_per_step);
  manifest.data = {
      {"train", options_.train_data}, {"rows", train_loader_->num_rows()}, {"shuffle", !options_.no_shuffle}};
  if (!tokenizer_name_.empty()) {
    const auto path = saved_path(tokenizer_name_);
    if (path) manifest.data["tokenizer"] = tokenizer_name_ == "gpt2" ? tokenizer_name_ : *path;
  }
  if (!options_.model.directory.empty()) {
    const auto path = saved_path(options_.model.directory);
    if (path) manifest.data["weights"] = *path;
  }
  manifest.world_size = world_.size();
  return manifest;
}

double FinetuneJob::current_lr() const {
  return plan_schedule(options_, plan_steps(options_, train_loader_->num_rows(), batches_.rows_per_step))
      .at(std::max<std::int64_t>(1, trainer_->state().step));
}

void FinetuneJob::start_save(bool final_one) {
  finish_save_if_written(true);
  if (owner_) owner_->check(true);
  was_disturbed_ = true;
  saver_->start(manifest(), current_lr());
  last_save_ = Clock::now();
  if (final_one) finish_save_if_written(true);
}

/// Makes a written checkpoint appear once all ranks are done with it. Collective.
bool FinetuneJob::finish_save_if_written(bool wait) {
  if (!saver_->under_way()) return false;
  if (!wait && !every_rank(world_, saver_->written())) return false;
  if (owner_) owner_->check(true);
  const auto result = saver_->finish();
  save_seconds_ = std::max(save_seconds_, result.seconds);
  save_error_ = result.error;
  if (result.saved) {
    if (metrics_) metrics_->sync();
    last_checkpoint_ = result.path;
    progress_->line(fmt::format("saved     {}   {} in {:.1f} s (training waited {:.2f} s)", result.path.string(),
                                format_bytes(static_cast<double>(result.size_bytes)), result.seconds,
                                result.blocked_seconds));
    if (!result.warning.empty()) log_.warning(result.warning);
  } else if (world_.rank() == 0) {
    log_.warning(fmt::format("saving failed, the last good checkpoint stays: {}", result.error));
  }
  return true;
}

void FinetuneJob::validate(std::int64_t step) {
  if (!val_loader_) return;
  was_disturbed_ = true;
  const auto result = evaluate_rows(*runtime_, *val_loader_, batches_.micro_batch_size);
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

/// Of any rank: all of them stopped for it. Collective.
std::string FinetuneJob::reason_to_stop() const {
  const bool mine = signal_.received() != 0;
  const auto rank = static_cast<int>(world_.all_reduce(mine ? world_.size() - world_.rank() : 0.0, Reduce::max));
  if (rank == 0) return "out of time";
  const auto number = static_cast<int>(world_.all_reduce(static_cast<double>(signal_.received()), Reduce::max));
  const int first = world_.size() - rank;
  return fmt::format("by signal {}{}", number, first == 0 ? "" : fmt::format(" to rank {}", first));
}

bool FinetuneJob::save_is_due(bool last_step) {
  const auto step = trainer_->state().step;
  if (last_step) return false;  // the final save follows
  bool due = save_waits_ || (options_.save_every > 0 && step % options_.save_every == 0);
  if (options_.save_interval_minutes > 0 && seconds_since(last_save_) >= 60 * options_.save_interval_minutes)
    due = true;
  if (options_.save_interval_minutes > 0) due = any_rank(world_, due);
  // While steps fail, nothing is known of this state that would make it worth more than the last one saved.
  save_waits_ = due && nonfinite_.any();
  return due && !save_waits_;
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
  const double flops = rate * flops_per_token(config_, train_loader_->tokens_per_row());
  if (peak_flops_ > 0 && flops > peak_flops_) {
    // Nothing passes the peak: it was measured while something else kept the processor busy.
    progress_->line(
        fmt::format("peak      {:.4g} TFLOP/s was measured too low: this step reaches {:.4g}, of which the "
                    "percentages are from here on",
                    peak_flops_ / 1e12, flops / 1e12));
    peak_flops_ = flops;
  }
  const double mfu = peak_flops_ > 0 ? flops / peak_flops_ : 0;
  if (peak_flops_ > 0) record["mfu"] = mfu;
  if (!device_.device.is_cpu()) {
    record["reserved_memory_bytes"] = static_cast<std::int64_t>(step.reserved_bytes);
    record["alloc_retries"] = static_cast<std::int64_t>(step.alloc_retries);
  }
  if (runtime_->policy().precision.param_dtype == at::kHalf) {
    record["loss_scale"] = trainer_->state().loss_scale;
    record["skipped"] = step.skipped;
  } else if (step.skipped) {
    record["skipped"] = true;
  }
  const auto& counts = runtime_->engine().counts();
  record["collectives"] = {
      {"shard", {{"all_gathers", counts.shard.all_gathers}, {"reduce_scatters", counts.shard.reduce_scatters}}},
      {"replicate", {{"all_reduces", counts.replicate.all_reduces}}}};
  if (metrics_) metrics_->add(record);
  const auto rest = fmt::format("norm {:.3g}   lr {:.1e}   {} tok/s{}{}", step.grad_norm, step.lr,
                                format_count(static_cast<std::int64_t>(rate)),
                                peak_flops_ > 0 ? fmt::format("   {:.0f} % of peak", 100 * mfu) : "",
                                step.overflow  ? "   skipped (fp16 overflow)"
                                : step.skipped ? "   skipped (not finite)"
                                               : "");
  // The line that scripts around the chess fine-tune know, and the one of a run from scratch.
  const auto line = config_.architecture == Architecture::llama
                        ? fmt::format("({}/{}) loss={:.4f} ({:.3f}s/step)   {}", step.step, total_steps, step.loss,
                                      step.seconds, rest)
                        : fmt::format("step {:>6}/{}   loss {:.4f}   {}", step.step, total_steps, step.loss, rest);
  progress_->step(step.step, total_steps, line, step.seconds);
}

void FinetuneJob::write_trace() {
  if (options_.runtime.trace_file.empty()) return;
  const auto parts = world_.gather(trace_.events_json(world_.rank()), 0);
  if (world_.rank() != 0) return;
  std::string text = "[";
  for (std::size_t r = 0; r < parts.size(); ++r) text += (r == 0 ? "\n" : ",\n") + parts[r];
  try {
    write_output(options_.runtime.trace_file, text + "\n]\n");
  } catch (const std::exception& error) {
    trace_error_ = error.what();  // told when all that the training is worth is done
    return;
  }
  log_.info("trace     " + options_.runtime.trace_file +
            "   open it in Perfetto (ui.perfetto.dev) or chrome://tracing");
}

}  // namespace fsdp::detail
