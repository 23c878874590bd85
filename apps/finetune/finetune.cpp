#include "apps/finetune/finetune.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "apps/common/remedies.hpp"
#include "apps/finetune/choose_child.hpp"
#include "apps/finetune/final_files.hpp"
#include "apps/finetune/generate_text.hpp"
#include "apps/finetune/reports/describe.hpp"
#include "apps/finetune/reports/left_out.hpp"
#include "apps/finetune/reports/offload_reporter.hpp"
#include "apps/finetune/reports/part_timer.hpp"
#include "apps/finetune/reports/speed_reporter.hpp"
#include "apps/finetune/reports/step_log.hpp"
#include "apps/finetune/start/initial_weights.hpp"
#include "apps/finetune/start/prepare_reference.hpp"
#include "apps/finetune/validation/validation.hpp"
#include "apps/finetune/watches.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/bf16/nccl_log.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/engine/sharding/trace.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/run/restart_command.hpp"
#include "lib/training/run/trace_file.hpp"
#include "lib/training/run/train_loop.hpp"
#include "lib/training/state/best.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "lib/training/step/throughput.hpp"
#include "lib/training/watch/flight_observer.hpp"

namespace fsdp {
namespace detail {
namespace {

std::unique_ptr<Trainer> make_trainer(const RunSetup& setup, ModelRuntime& runtime) {
  if (!setup.train_data) return nullptr;
  const auto& options = setup.options;
  const TrainerOptions trainer_options{setup.batches,          setup.schedule,         plan_optimizer(options),
                                       options.decay_all,      options.clip_grad_norm, options.seed,
                                       options.fisher_samples, plan_objective(options)};
  return std::make_unique<Trainer>(runtime, *setup.train_data, trainer_options);
}

RunRules rules_of(const RunSetup& setup, bool continues) {
  const auto& options = setup.options;
  return {.save_every = setup.save_every,
          .save_interval_minutes = options.save_interval_minutes,
          .saves_pass = options.interval_saves_pass,
          .eval_every = setup.eval_every,
          .tasks_every = setup.tasks_every,
          .verify_every = static_cast<double>(options.verify_every),
          .sniff_every = static_cast<double>(options.sniff_every),
          .has_validation = setup.validates(),
          .final_save = !options.no_final_save,
          .exports = exports_at_the_end(options),
          .ends_with_best = options.validation.ends_with_best,
          .strips = options.keep_optimizer > 0,
          .continues = continues,
          .max_nonfinite_steps = options.max_nonfinite_steps,
          .validation = validation_rules(setup)};
}

/// The training part of a job, from its first step to its last line.
class Training {
 public:
  Training(const RunContext& context, RunStart& start, MemoryReporter& memory, const PartTimer& timer,
           JobEvents& events, const std::optional<RestartPoint>& taken)
      : context_(context),
        events_(events),
        clock_(start.clock),
        memory_(memory),
        taken_(taken),
        record_(context, start, memory, begins_a_run(context.setup, taken) ? -1 : taken->manifest.state.step),
        peak_flops_(peak_flops(context.setup.device, context.runtime.policy().precision.param_dtype)),
        log_(context, record_, context.world.all_reduce(peak_flops_, Reduce::sum)),
        speed_(context, memory, timer),
        validation_(context, record_, memory, clock_),
        outputs_(context, record_, start.clock, taken ? taken->candidates.front() : std::filesystem::path()),
        life_({context.world, context.log, context.progress, context.trainer, record_, validation_, outputs_},
              rules_of(context.setup, taken && !begins_a_run(context.setup, taken))),
        offload_(context),
        watches_(context, record_, start.clock, memory) {
    begin_run();
    speed_.predict(peak_flops_, context.setup.total_steps - context.trainer.state().step);
    reset_host_memory_peak();  // exclude the matrices of the peak measurement
  }

  ExitCode run(const TraceRecorder& trace, nlohmann::json& report) {
    const auto& setup = context_.setup;
    TrainLoop loop(context_.trainer, life_, {setup.total_steps, setup.total_samples},
                   {&losses_, &memory_, &speed_, &clock_, &log_, &offload_, &events_, &watches_.status, &watches_.pace,
                    &watches_.verifier, &watches_.sniff},
                   [this] { return clock_.stop_wanted(context_.trainer.steps_under_way()) || life_.life().is_cut; });
    const bool saves_before_a_step = loop.is_over() || context_.trainer.optimizer().is_choosing_child();
    if (saves_before_a_step) context_.world.end_waits({});
    bool stopped = !choose_child(
        context_, [this] { return clock_.stop_wanted(); }, [this] { life_.after_fisher_batch(); }, report);
    if (!stopped) {
      life_.handle(run_event::Ready{!loop.is_over()});
      stopped = loop.run();
    }
    life_.handle(run_event::Ended{stopped, context_.trainer.state().fisher_batches});
    context_.progress.finish();
    watches_.pace.end();
    record_.draw_losses();
    const auto trace_error = write_trace(context_.world, setup.options.runtime.trace_file, trace, context_.log);
    memory_.report(context_.runtime, report);
    speed_.report(report);
    offload_.report(report);
    life_.handle(run_event::Reported{});
    stopped = life_.life().is_stopped;
    fill(report, stopped);
    const bool pruned = life_.life().is_pruned && !why_early().empty();
    record_.end_job(stopped ? "stopped" : pruned ? "pruned" : "done", why_early());
    watches_.status.remove();
    return stopped ? report_stopped(trace_error) : report_done(trace_error);
  }

 private:
  /// Gives the run its first event. \pre nothing else was given
  void begin_run() {
    const auto& setup = context_.setup;
    const auto& state = context_.trainer.state();
    const auto taken = taken_ ? taken_->candidates.front() : std::filesystem::path();
    // Only rank 0 looks, because other hosts may see a shared file system with a delay of seconds.
    const bool looks = context_.world.rank() == 0;
    const bool is_saved = taken_ && taken_->is_ours;  // the state need not be saved once more
    std::error_code error;
    const bool is_here = looks && is_saved && !taken.empty() &&
                         std::filesystem::equivalent(taken, setup.checkpoints() / checkpoint_name(state.step), error) &&
                         !error;
    const bool has_latest = looks && !checkpoints_of_run(setup.checkpoints()).empty();
    life_.handle(run_event::Started{.state = state,
                                    .is_saved = is_saved,
                                    .is_here = any_rank(context_.world, is_here),
                                    .has_latest = any_rank(context_.world, has_latest),
                                    .old_run = record_.keeps_old_run(),
                                    .another_run = counts_for_another(setup, state.validation)});
  }

  /// The reason why --patience or the pruning of a sweep ended the run before its last step, for messages; empty when
  /// neither did.
  std::string why_early() const {
    const auto& life = life_.life();
    if (!life_.ends_early() || life.step >= context_.setup.total_steps) return "";
    if (life.is_pruned) return validation_.why_behind();
    return why_out_of_patience(context_.setup, life.validation, life_.rules().validation);
  }

  void fill(nlohmann::json& report, bool stopped) const {
    const auto& setup = context_.setup;
    const auto& options = setup.options;
    if (!stopped && !options.save_final_full.empty()) report["full_checkpoint"] = options.save_final_full;
    if (!stopped && !options.save_final_hf.empty()) report["hf_directory"] = options.save_final_hf;
    report["trained_parameters"] = num_trained(context_.runtime.decoder().parameters, context_.runtime.trainable());
    report["steps"] = context_.trainer.state().step;
    report["samples"] = context_.trainer.state().samples;
    report_left_out(setup, report);
    report["first_loss"] = losses_.first();
    report["loss"] = losses_.last();
    report_validation(setup, validation_.result(), report);
    if (const auto& best = context_.trainer.state().validation; best.best_step >= 0) {
      report["best_step"] = best.best_step;
      report["best_metric"] = best.metric;
      report["best_value"] = best.best_value;
      const bool is_linked = best_link(setup.checkpoints()) == best.best_step;
      report["best_checkpoint"] =
          (setup.checkpoints() / (is_linked ? "best" : checkpoint_name(best.best_step))).string();
    }
    if (const auto why = why_early(); !why.empty()) report["ended_early"] = why;
    if (!stopped && !outputs_.exported().empty()) report["final"] = outputs_.exported();
    report["checkpoint"] = outputs_.last_checkpoint().string();
    report["metrics"] = (setup.directory / "metrics.jsonl").string();
    report["seconds"] = clock_.seconds();
    report["stopped_early"] = stopped;
  }

  ExitCode report_stopped(const std::string& trace_error) {
    const auto& log = context_.log;
    const auto total_steps = context_.setup.total_steps;
    if (!trace_error.empty()) log.warning("no trace: " + trace_error);
    const auto reason = clock_.reason(context_.world);
    const auto step = context_.trainer.state().step;
    events_.set_message(fmt::format("{}, at step {} of {}", reason, step, total_steps));
    log.info(record_.is_open()
                 ? fmt::format("stopped   {}   step {} of {}; to resume, on any number of ranks: {}", reason, step,
                               total_steps, restart_command(context_.setup.options, context_.world.size()))
                 : fmt::format("stopped   {}   before the first step of {}: nothing to save, and the earlier run in {} "
                               "is as it was; start again in the same way",
                               reason, total_steps, context_.setup.directory.string()));
    return ExitCode::stopped_early;
  }

  /// Says what a job that found no steps left made nevertheless.
  std::string done_without_steps() const {
    const auto& options = context_.setup.options;
    const bool validated = !life_.ends_early() || validation_.result();
    const bool has_data = !context_.setup.validation.empty() || context_.setup.games || context_.setup.tasks;
    std::vector<std::string> made;
    if (validated && has_data) made.emplace_back("the validation");
    if (validated && record_.is_open() && !options.validation.sample_prompts.empty()) made.emplace_back("the samples");
    if (exports_at_the_end(options)) made.emplace_back("the exports");
    if (context_.runtime.has_adapters() && record_.is_open()) made.emplace_back("the adapter's files");
    return made.empty() ? "nothing to do" : fmt::format("no step was left; made: {}", fmt::join(made, ", "));
  }

  ExitCode report_done(const std::string& trace_error) {
    const auto step = context_.trainer.state().step;
    const auto problem = context_.world.broadcast_text(trace_error, 0);
    if (!problem.empty()) throw IoError("the run is done and saved, but its --trace is not: " + problem);
    const auto early = why_early();
    events_.set_message(early.empty()
                            ? fmt::format("step {} of {}", step, context_.setup.total_steps)
                            : fmt::format("step {} of {} is the last: {}", step, context_.setup.total_steps, early));
    if (losses_.steps() == 0 && !early.empty()) {
      context_.log.info(fmt::format("done      {}; the run was ended early at step {} of {}, since {}{}",
                                    done_without_steps(), step, context_.setup.total_steps, early,
                                    life_.life().is_pruned ? "" : "; a larger --patience, or 0 for none, goes on"));
      return ExitCode::ok;
    }
    if (!early.empty())
      context_.log.info(
          fmt::format("early     step {} of {} is the last: {}", step, context_.setup.total_steps, early));
    if (losses_.steps() == 0) {
      const auto& options = context_.setup.options;
      context_.log.info(fmt::format("done      {}; step {} of {}; {} goes on", done_without_steps(), step,
                                    context_.setup.total_steps,
                                    options.mix_end == MixEnd::stop ? "--mix-end repeat or drop"
                                    : options.max_steps <= 0        ? "--max-epochs N"
                                                                    : "--max-steps N"));
      return ExitCode::ok;
    }
    context_.log.info(fmt::format("done      {} in {}   loss {:.4f} -> {:.4f}   {}", format_count_of(step, "step"),
                                  format_duration(clock_.seconds()), losses_.first(), losses_.last(),
                                  (context_.setup.directory / "loss.svg").string()));
    return ExitCode::ok;
  }

  const RunContext& context_;
  JobEvents& events_;
  RunClock& clock_;
  MemoryReporter& memory_;
  const std::optional<RestartPoint>& taken_;
  RunRecord record_;
  LossLog losses_;
  double peak_flops_;  ///< FLOP/s of this rank's device
  StepLog log_;
  SpeedReporter speed_;
  Validation validation_;
  FinalFiles outputs_;
  RunExecutor life_;
  OffloadReporter offload_;
  Watches watches_;
};

/// \return what tells NCCL's transport of a training job; null where there is none
std::unique_ptr<NcclLog> log_of_nccl(ProcessGroup& world, const RunSetup& setup) {
  const bool is_used = setup.device.backend != nullptr && world.size() > 1 && !setup.options.sharding.host_staged;
  return is_used && setup.train_data && world.rank() == 0 ? std::make_unique<NcclLog>(false) : nullptr;
}

}  // namespace
}  // namespace detail

ExitCode run_finetune(ProcessGroup& world, RunStart& start, const TrainOptions& options,
                      const nlohmann::json& saved_options, JobEvents& events, const Logger& log,
                      nlohmann::json& report) {
  using namespace detail;
  install_host_allocator();
  auto setup = set_up_run(world, start, options, saved_options, log);
  if (options.dry_run) {
    report_left_out(setup, report);
    return dry_run(world, setup, log, report);
  }
  TraceRecorder trace;
  auto sharding = options.sharding;
  if (!setup.train_data) sharding.offload_parameters = false;
  if (!setup.train_data) sharding.offload_optimizer = {};  // no optimizer state without training
  sharding.cuda_graphs = setup.cuda_graphs();
  sharding.lora = setup.lora;
  const auto nccl_log = log_of_nccl(world, setup);
  MemoryReporter memory(world, setup, log);
  const bool trains_on_cpus = setup.train_data && setup.device.backend == nullptr;
  if (trains_on_cpus) {  // before the model takes memory; a GPU's is known only with its communicators
    memory.predict();
    memory.require_room();
  }
  ModelRuntime runtime(world, setup.config, sharding, setup.device, shape_of_steps(setup));
  if (!options.runtime.trace_file.empty()) runtime.engine().observers().add(trace);
  PartTimer timer;
  runtime.engine().observers().add(timer);
  FlightObserver flight(world.recorder());
  runtime.engine().observers().add(flight);
  const auto trainer = make_trainer(setup, runtime);
  const auto products = agree_on_products(world, runtime, log);
  describe_run(world, setup, runtime, products, log);
  if (trainer && !trains_on_cpus) memory.predict();
  if (trainer) memory.tell();
  const auto taken = fill_weights(world, setup, runtime, trainer.get(), log);
  go_back_in_sources(world, setup, taken, log);
  prepare_reference(world, setup, runtime, taken, log, [&start] { return start.clock.signalled(); });
  auto ignored = ignored_in_folders(world, setup);
  if (taken) ignored.add(taken->ignored);
  log_ignored(ignored, log);
  report["ignored"] = ignored.to_json();
  if (taken && !taken->manifest.products.empty() && taken->manifest.products != products) {
    log.info(fmt::format("products  {}; the saved run had {}: sums differ from its own in their last bits", products,
                         taken->manifest.products));
  }
  if (start.restart) start.restart->checkpoint.reset();  // closes it, because its index may be as large as the job
  Progress progress(log, world.rank() == 0 && !options.runtime.quiet, static_cast<double>(options.log_every));
  events.start(trainer ? trainer->state().step : 0, setup.total_steps, log);
  try {
    auto code = ExitCode::ok;
    if (trainer) {
      const RunContext context{world, log, setup, runtime, *trainer, progress, products, nccl_log.get()};
      code = Training(context, start, memory, timer, events, taken).run(trace, report);
    } else if (setup.validates()) {
      const auto stopped = [&] { return any_rank(world, start.clock.must_end()); };
      const auto step = taken ? taken->manifest.state.step : 0;
      code = report_evaluation(setup, validate(runtime, setup, {}, log, &progress, step, stopped), report);
      if (code != ExitCode::ok)
        progress.keep(fmt::format("stopped   {}   before the end of the validation: start it again in the same way",
                                  start.clock.reason(world)));
    }
    const auto is_over = [&] { return any_rank(world, start.clock.is_over()); };
    if (code == ExitCode::ok && !generate_text(world, setup, runtime, is_over, log)) {
      progress.keep(fmt::format("stopped   {}   before the end of the text", start.clock.reason(world)));
      if (trainer) return code;  // training is complete and saved
      report["stopped_early"] = true;
      return ExitCode::stopped_early;
    }
    return code;
  } catch (const c10::OutOfMemoryError& error) {
    throw RuntimeFailure(without_room(error, runtime.engine().recording_counts()));
  }
}

}  // namespace fsdp
