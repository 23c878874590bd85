#include "apps/finetune/finetune.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/finetune/describe.hpp"
#include "apps/finetune/final_files.hpp"
#include "apps/finetune/speed_reporter.hpp"
#include "apps/finetune/step_log.hpp"
#include "apps/finetune/validation.hpp"
#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/output_file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/bf16/facts.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/engine/fsdp/trace.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/text/tokenizer/generated_text.hpp"
#include "lib/training/checkpoints/best.hpp"
#include "lib/training/checkpoints/ignored_inputs.hpp"
#include "lib/training/checkpoints/load.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/run/restart_command.hpp"
#include "lib/training/run/status_writer.hpp"
#include "lib/training/run/train_loop.hpp"
#include "lib/training/step/initialize.hpp"
#include "lib/training/step/throughput.hpp"

namespace fsdp {
namespace detail {
namespace {

/// Returns the saved state. A loss scale belongs to fp16: when only one of the two runs uses fp16, the loss scale
/// starts as in a new run.
/// \param fresh  the state of a new run in this run's precision
RunState continued_state(const RunManifest& saved, const RunState& fresh, bool is_half) {
  auto state = saved.state;
  std::string precision;
  if (saved.options.is_object()) precision = saved.options.value("precision", std::string());
  // The precision of --param-dtype fp16 is not saved, but the loss scale of such a run is hardly ever 1.
  const bool was_half = state.loss_scale != 1.0 || precision == "fp16" || precision == "float16";
  if (was_half != is_half) {
    state.loss_scale = fresh.loss_scale;
    state.good_steps = fresh.good_steps;
  }
  return state;
}

/// Performs one restart, which may fall back to an older checkpoint.
class Restore {
 public:
  Restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer, const Logger& log)
      : world_(world), setup_(setup), runtime_(runtime), trainer_(trainer), log_(log), point_(*setup.restart) {}

  RestartPoint run();

 private:
  OptimizerPlan load();
  void take_run(const OptimizerPlan& state);
  void take_weights(const OptimizerPlan& state);
  /// The position at which a run continues from a checkpoint that does not state it, with a text for the log.
  struct Place {
    std::int64_t step = 0, samples = 0;
    std::string text;
  };
  Place place_of(const Checkpoint& checkpoint, const OptimizerPlan& state) const;
  std::string name() const;
  std::string about_optimizer(const OptimizerPlan& state) const;
  std::string about_the_rest(std::int64_t step) const;

  ProcessGroup& world_;
  const RunSetup& setup_;
  ModelRuntime& runtime_;
  Trainer* trainer_;
  const Logger& log_;
  RestartPoint point_;
};

RestartPoint Restore::run() {
  const auto state = load();
  if (point_.knows_run) {
    take_run(state);
  } else {
    take_weights(state);
  }
  point_.ignored = point_.checkpoint->ignored(world_);
  point_.checkpoint.reset();
  return point_;
}

/// Loads the checkpoint, or an older one when a rank finds it damaged or it keeps its weights alone.
/// \throws FormatError when none is left
OptimizerPlan Restore::load() {
  std::filesystem::path weights;  // the newest checkpoint that keeps them alone
  for (;;) {
    try {
      return load_checkpoint(runtime_, trainer_ ? &trainer_->optimizer() : nullptr, *point_.checkpoint);
    } catch (const FormatError& error) {  // thrown on every rank
      if (point_.manifest.weights_alone && weights.empty()) weights = point_.candidates.front();
      if (point_.candidates.size() == 1 && !point_.problems.empty() && !weights.empty())
        throw FormatError(
            fmt::format("no checkpoint of this run can be resumed from. The newest: {}. The newest of those that keep "
                        "their weights alone (--keep-optimizer) is {}: `fsdp-ckpt-convert {} DIR --to hf` writes "
                        "its model, and --model DIR begins a new run with it",
                        point_.problems.front(), weights.filename().string(), shell_word(weights.string())));
      if (point_.candidates.size() == 1) throw;
      leave_checkpoint(world_, point_, error.what(), log_);
      take_first_usable(world_, point_, log_);
    }
  }
}

void Restore::take_run(const OptimizerPlan& state) {
  const auto& stood = point_.manifest.state;
  if (const auto epoch = setup_.options.restart_epoch; epoch && setup_.train_data) {
    const auto rows = setup_.train_data->num_rows();
    if (stood.samples != *epoch * rows)
      throw UsageError(
          fmt::format("--restart-epoch {} contradicts the checkpoint {}, which has seen {} of {} an epoch: leave the "
                      "option out",
                      *epoch, point_.candidates.front().string(), format_count_of(stood.samples, "row"), rows));
  }
  if (trainer_) {
    const bool scaled = runtime_.policy().precision.needs_loss_scale();
    trainer_->state() = continued_state(point_.manifest, trainer_->state(), scaled);
    if (!state.found) trainer_->optimizer().set_steps(0);
    if (!state.child) trainer_->state().fisher_batches = 0;
  }
  log_.info(fmt::format("restart   {}   step {}, {} seen, saved by {}{}", name(), stood.step,
                        format_count_of(stood.samples, "sample"), format_count_of(point_.manifest.world_size, "rank"),
                        point_.is_ours && state.found && state.remark.empty() ? "" : about_optimizer(state)));
  if (const auto& left = setup_.options.left_behind; !left.empty())
    log_.info(
        fmt::format("options   the run was started with {}, which a restart does not take over: give them again "
                    "where they are wanted",
                    fmt::join(left, " ")));
}

void Restore::take_weights(const OptimizerPlan& state) {
  auto& stood = point_.manifest.state;
  const auto place = place_of(*point_.checkpoint, state);
  stood.step = place.step;
  if (trainer_) {
    stood = trainer_->state();  // with the initial loss scale for fp16
    stood.step = place.step;
    stood.samples = place.samples;
    stood.optimizer_steps = state.steps;
    trainer_->state() = stood;
  }
  log_.info(fmt::format("restart   {}   {}{}{}: these are as the command line says", name(), place.text,
                        about_optimizer(state), about_the_rest(place.step)));
}

/// Describes what else a checkpoint of another program says about its run, and names what is not taken.
std::string Restore::about_the_rest(std::int64_t step) const {
  const auto& trainer = point_.checkpoint->source().info().trainer;
  if (trainer.empty())
    return fmt::format("; the file has no {}",
                       step == 0 ? "options or random state" : "data position, options or random state");
  std::string text;
  if (const auto tokens = point_.checkpoint->tokens_seen())
    text += fmt::format("   {} seen", format_count_of(*tokens, "token"));
  if (const auto rate = point_.checkpoint->learning_rate(); rate && trainer_)
    text += fmt::format("   learning rate {:g}{}", *rate, *rate == setup_.schedule.peak ? "" : " there, not here");
  return text + fmt::format("; not taken of {}'s: schedule, position in the data, options and random state", trainer);
}

std::string Restore::name() const {
  const auto path = point_.candidates.front().string();
  return point_.is_ours ? path : fmt::format("{} ({})", path, point_.checkpoint->source().info().format);
}

/// Computes the position from a number of steps or epochs, when the checkpoint has nothing else.
Restore::Place Restore::place_of(const Checkpoint& checkpoint, const OptimizerPlan& state) const {
  Place place;
  const auto product = [&](std::int64_t a, std::int64_t b, const char* what) {
    std::int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result))
      throw FormatError(fmt::format("{}: {} {} are more than can be counted", checkpoint.path().string(), a, what));
    return result;
  };
  const auto per_step = setup_.batches.rows_per_step;
  if (setup_.options.restart_epoch && setup_.train_data) {
    place.samples = product(*setup_.options.restart_epoch, setup_.train_data->num_rows(), "epochs");
    place.step = (place.samples + per_step / 2) / per_step;
    place.text = fmt::format("after {} of {} (--restart-epoch): step {}",
                             format_count_of(*setup_.options.restart_epoch, "epoch"),
                             format_count_of(setup_.train_data->num_rows(), "row"), place.step);
  } else if (checkpoint.step()) {
    place.step = checkpoint.step()->second;
    place.samples = product(place.step, per_step, "steps");
    place.text = fmt::format("step {} (its '{}')", place.step, checkpoint.step()->first);
  } else if (checkpoint.epochs_done() && setup_.train_data) {
    place.samples = product(*checkpoint.epochs_done(), setup_.train_data->num_rows(), "epochs");
    place.step = (place.samples + per_step / 2) / per_step;
    place.text = fmt::format(
        "after {} of {} (its 'epoch_number' {}): step {}", format_count_of(*checkpoint.epochs_done(), "epoch"),
        format_count_of(setup_.train_data->num_rows(), "row"), *checkpoint.epochs_done() - 1, place.step);
  } else {
    place.step = state.steps;
    place.samples = product(place.step, per_step, "steps");
    place.text = fmt::format("step {}{}", place.step, state.found ? " (its optimizer's)" : "");
  }
  return place;
}

std::string Restore::about_optimizer(const OptimizerPlan& state) const {
  if (!trainer_) return "";
  const auto remark = state.remark.empty() ? "" : " (" + state.remark + ")";
  const auto optimizer = trainer_->optimizer().name();
  if (!state.found) return fmt::format("   without {} state, it starts anew{}", optimizer, remark);
  return fmt::format("   {} state of {}{}", optimizer, format_count_of(state.steps, "step"), remark);
}

/// Loads runtime and trainer from setup.restart, or from an older checkpoint when the newest one is damaged, and logs
/// which one was loaded. Collective.
/// \param trainer  null: evaluation only
/// \return the checkpoint that was loaded
RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log) {
  return Restore(world, setup, runtime, trainer, log).run();
}

void tell_of_child(const RunContext& context, const ChildSummary& child, const std::string& measured) {
  const auto share = [&](std::int64_t n) {
    return 100.0 * static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(1, child.elements));
  };
  context.log.info(fmt::format(
      "child     {} of the blocks' {} elements are trained ({:.2f} %)   {}, sums from {:.3g} on",
      format_count(child.kept), format_count(child.elements), share(child.kept), measured, child.threshold));
  if (child.kept == child.wanted || context.world.rank() != 0) return;
  context.log.warning(fmt::format(
      "{} elements more than --child-tuning-p asks for ({:.2f} %) are trained: they are all equal to the least that is",
      format_count(child.kept - child.wanted), share(child.wanted)));
}

// The pass over training data at the start of Child-Tuning-D, which estimates the Fisher information.

/// Measures the remaining batches of the Fisher pass and chooses the child network. Does nothing when no child is to be
/// chosen. Collective.
/// \param stop_wanted  asked on every rank before each micro-batch
/// \param after_batch  called after each global batch, when the state can be saved
/// \return false when stopped before all batches were measured
bool choose_child(const RunContext& context, const std::function<bool()>& stop_wanted,
                  const std::function<void()>& after_batch, nlohmann::json& report) {
  auto& trainer = context.trainer;
  if (!trainer.optimizer().is_choosing_child()) return true;
  const auto& options = context.setup.options;
  const auto begin = std::chrono::steady_clock::now();
  const auto total = trainer.fisher_batches(), done = trainer.state().fisher_batches;
  Progress progress(context.log, context.world.rank() == 0 && !options.runtime.quiet,
                    static_cast<double>(options.log_every));
  while (trainer.state().fisher_batches < total) {
    const auto start = std::chrono::steady_clock::now();
    const auto before = trainer.state().fisher_batches;
    if (!trainer.measure_fisher(stop_wanted)) {
      progress.finish();
      return false;
    }
    const auto batch = trainer.state().fisher_batches;
    if (batch == before) continue;  // the batch is repeated with a smaller loss scale
    progress.step(batch, total, fmt::format("fisher    batch {} of {}", batch, total), seconds_since(start));
    after_batch();
  }
  progress.finish();
  const auto child = trainer.choose_child();
  tell_of_child(context, child,
                fmt::format("{} of {} measured in {}", format_count_of(total - done, "batch", "batches"),
                            format_count_of(context.setup.batches.rows_per_step, "sample"),
                            format_duration(seconds_since(begin))));
  report["child"] = {{"elements", child.elements}, {"kept", child.kept}, {"threshold", child.threshold}};
  return true;
}

std::unique_ptr<Trainer> make_trainer(const RunSetup& setup, ModelRuntime& runtime) {
  if (!setup.train_data) return nullptr;
  const auto& options = setup.options;
  const TrainerOptions trainer_options{setup.batches,       setup.schedule,         plan_optimizer(options),
                                       options.decay_all,   options.clip_grad_norm, options.seed,
                                       !options.no_shuffle, options.fisher_samples, plan_objective(options)};
  return std::make_unique<Trainer>(runtime, *setup.train_data, trainer_options);
}

/// Loads weights and logs where they come from and how long it took. \param load  loads the weights
template <typename Load>
void tell_weights(ProcessGroup& world, const std::string& directory, const Logger& log, const Load& load) {
  const auto start = std::chrono::steady_clock::now();
  load();
  world.barrier();
  log.info(fmt::format("weights   {}   {:.1f} s", directory, seconds_since(start)));
}

/// \return what of the model's folder, and of the adapter in peft's format, has no influence on the run; on rank 0
Ignored ignored_in_folders(ProcessGroup& world, const RunSetup& setup) {
  const auto& options = setup.options;
  Ignored ignored;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    const auto& model = options.model.directory;
    if (!model.empty() && !setup.restart) ignored.add(ignored_in_model(model, setup.tokenizer.name == model));
    if (!options.adapter.empty()) ignored.add(ignored_in_adapter(options.adapter));
  });
  return ignored;
}

/// Loads the base weights from their folder, and adapters from a checkpoint, from peft's files, or newly made.
std::optional<RestartPoint> fill_adapters(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                                          Trainer* trainer, const Logger& log) {
  const auto& options = setup.options;
  auto directory = options.model.directory;
  if (setup.restart) {
    require_kind(*setup.restart->checkpoint, /*adapters_only=*/true);
    const auto& saved = setup.restart->manifest.data;
    if (directory.empty()) directory = saved.value("weights", std::string());
    const BaseWeights base{directory, saved.value("weights_hash", std::string())};
    tell_weights(world, directory, log, [&] { load_base(runtime, base, setup.restart->candidates.front()); });
    return restore(world, setup, runtime, trainer, log);
  }
  if (directory.empty())
    throw UsageError("--lora-rank needs the weights that adapters are for: --model DIR or ORG/NAME");
  tell_weights(world, directory, log, [&] { load_weights(runtime, directory, options.model.new_rows); });
  if (options.adapter.empty()) {
    log.warnings_of_all(adapter_left_out(directory));
    initialize_adapters(runtime, options.seed);
  } else {
    log.warnings_of_all(load_adapter(runtime, options.adapter));
    log.info("adapter   " + options.adapter);
  }
  return std::nullopt;
}

/// Fills the weights from a checkpoint, from a folder of weights, or with new ones. \return the checkpoint that was
/// used
std::optional<RestartPoint> fill_weights(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                                         Trainer* trainer, const Logger& log) {
  const auto& options = setup.options;
  if (runtime.has_adapters()) return fill_adapters(world, setup, runtime, trainer, log);
  if (setup.restart) return restore(world, setup, runtime, trainer, log);
  if (options.model.directory.empty()) {
    initialize_parameters(runtime, options.seed);
    return std::nullopt;
  }
  tell_weights(world, options.model.directory, log,
               [&] { load_weights(runtime, options.model.directory, options.model.new_rows); });
  log.warnings_of_all(adapter_left_out(options.model.directory));
  return std::nullopt;
}

/// Reports a job that only evaluates. \return stopped_early when there is no result; nothing is kept for the next start
ExitCode report_evaluation(const RunSetup& setup, const std::optional<ValidationResult>& result,
                           nlohmann::json& report) {
  report["stopped_early"] = !result;
  if (!result) return ExitCode::stopped_early;
  report_validation(setup, result, report);
  if (!result->sets.empty()) report["perplexity"] = result->sets.at(setup.deciding.set).perplexity;
  return ExitCode::ok;
}

/// \param stopped  called on all ranks after each token
/// \return false when stopped: the text then ends early
bool generate_text(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                   const std::function<bool()>& stopped, const Logger& log) {
  const auto& options = setup.options;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (options.prompt.empty()) return true;
  if (tokenizer == nullptr) throw UsageError("--prompt: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  SamplingOptions sampling;
  sampling.num_tokens = options.num_tokens;
  sampling.seed = options.seed;
  const auto prompt =
      plain_prompt(*tokenizer, options.prompt, generation_ends({options.adapter, options.model.directory, name}));
  bool is_cut = false;
  const auto ids = generate(runtime, prompt.ids, sampling, [&](std::int32_t id) {
    is_cut = stopped();
    return !is_cut && !prompt.is_end(id);
  });
  if (world.rank() == 0) log.info("text      " + options.prompt + continuation(*tokenizer, ids));
  return !is_cut;
}

/// \return an error message on rank 0, which is raised only after the results of training are safe
std::string write_trace(ProcessGroup& world, const std::string& file, const TraceRecorder& trace, const Logger& log) {
  if (file.empty()) return "";
  const auto parts = world.gather(trace.events_json(world.rank()), 0);
  if (world.rank() != 0) return "";
  std::string text = "[";
  for (std::size_t r = 0; r < parts.size(); ++r) text += (r == 0 ? "\n" : ",\n") + parts[r];
  try {
    write_output(file, text + "\n]\n");
  } catch (const std::exception& error) {
    return error.what();
  }
  log.info("trace     " + file + "   open it in Perfetto (ui.perfetto.dev) or chrome://tracing");
  return "";
}

RunRules rules_of(const RunSetup& setup, bool continues) {
  const auto& options = setup.options;
  return {.save_every = setup.save_every,
          .save_interval_minutes = options.save_interval_minutes,
          .saves_pass = options.interval_saves_pass,
          .eval_every = setup.eval_every,
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
        status_(context.world, context.setup.directory, context.setup.device.backend.get(),
                context.setup.device.device.index(), record_, context.log) {
    begin_run();
    speed_.predict(peak_flops_, context.setup.total_steps - context.trainer.state().step);
    reset_host_memory_peak();  // exclude the matrices of the peak measurement
  }

  ExitCode run(const TraceRecorder& trace, nlohmann::json& report) {
    const auto& setup = context_.setup;
    TrainLoop loop(context_.trainer, life_, {setup.total_steps, setup.total_samples},
                   {&losses_, &memory_, &speed_, &clock_, &log_, &offload_, &events_, &status_},
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
    status_.remove();
    return stopped ? say_stopped(trace_error) : say_done(trace_error);
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
    const auto& table = context_.runtime.decoder().parameters;
    report["trained_parameters"] = num_trained(table, context_.runtime.trainable());
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

  ExitCode say_stopped(const std::string& trace_error) {
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
    const bool has_data = !context_.setup.validation.empty() || context_.setup.games;
    std::vector<std::string> made;
    if (validated && has_data) made.emplace_back("the validation");
    if (validated && record_.is_open() && !options.validation.sample_prompts.empty()) made.emplace_back("the samples");
    if (exports_at_the_end(options)) made.emplace_back("the exports");
    if (context_.runtime.has_adapters() && record_.is_open()) made.emplace_back("the adapter's files");
    return made.empty() ? "nothing to do" : fmt::format("no step was left; made: {}", fmt::join(made, ", "));
  }

  ExitCode say_done(const std::string& trace_error) {
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
      context_.log.info(fmt::format("done      {}; step {} of {}; {} N goes on", done_without_steps(), step,
                                    context_.setup.total_steps,
                                    context_.setup.options.max_steps <= 0 ? "--max-epochs" : "--max-steps"));
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
  StatusWriter status_;
};

/// \return what tells NCCL's transport of a training job; null where there is none
std::unique_ptr<NcclLog> log_of_nccl(ProcessGroup& world, const RunSetup& setup) {
  const bool is_used = setup.device.backend != nullptr && world.size() > 1 && !setup.options.sharding.host_staged;
  return is_used && setup.train_data && world.rank() == 0 ? std::make_unique<NcclLog>(false) : nullptr;
}

/// \throws Error (answer_no) on all ranks where the steps cannot fit into the memory of rank 0's node: the kernel would
/// end them
void require_room(ProcessGroup& world, const MemoryReporter& memory) {
  run_agreed(world, [&] {
    if (memory.room() != MemoryReporter::Room::lacking) return;
    memory.tell();
    throw Error(ExitCode::answer_no, "the job does not fit into this node's memory: " + memory.what_helps());
  });
}

/// \return the message of a job that ends because a GPU's memory is full
std::string without_room(const c10::OutOfMemoryError& error, const RecordingCounts& graphs) {
  std::string text = error.what_without_backtrace();
  if (graphs.recorded == 0) return text;
  return fmt::format("{} of this job keep memory that other work then lacks: start it with --cuda-graphs off. {}",
                     format_count_of(graphs.recorded, "CUDA graph"), text);
}

}  // namespace
}  // namespace detail

ExitCode run_finetune(ProcessGroup& world, RunStart& start, const TrainOptions& options,
                      const nlohmann::json& saved_options, JobEvents& events, const Logger& log,
                      nlohmann::json& report) {
  using namespace detail;
  install_host_allocator();
  const auto setup = set_up_run(world, start, options, saved_options, log);
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
    require_room(world, memory);
  }
  ModelRuntime runtime(world, setup.config, sharding, setup.device, plan_step(options, setup.batches));
  if (!options.runtime.trace_file.empty()) runtime.engine().observers().add(trace);
  PartTimer timer;
  runtime.engine().observers().add(timer);
  const auto trainer = make_trainer(setup, runtime);
  const auto products = agree_on_products(world, runtime, log);
  describe_run(world, setup, runtime, products, log);
  if (trainer && !trains_on_cpus) memory.predict();
  if (trainer) memory.tell();
  const auto taken = fill_weights(world, setup, runtime, trainer.get(), log);
  auto ignored = ignored_in_folders(world, setup);
  if (taken) ignored.add(taken->ignored);
  tell_of_ignored(ignored, log);
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
      code = report_evaluation(setup, validate(runtime, setup, log, &progress, step, stopped), report);
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
