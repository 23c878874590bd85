#include "apps/finetune/start/restore.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/common/remedies.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/training/state/load/load.hpp"

namespace fsdp::detail {
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
  Place position_of(const Checkpoint& checkpoint, const OptimizerPlan& state) const;
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
      leave_checkpoint(world_, point_, told(error), log_);
      take_first_usable(world_, point_, log_);
    }
  }
}

void Restore::take_run(const OptimizerPlan& state) {
  const auto& run_state = point_.manifest.state;
  if (const auto epoch = setup_.options.restart_epoch; epoch && setup_.train_data) {
    const auto rows = setup_.train_data->num_rows();
    if (run_state.samples != *epoch * rows)
      throw UsageError(
          fmt::format("--restart-epoch {} contradicts the checkpoint {}, which has seen {} of {} an epoch: leave the "
                      "option out",
                      *epoch, point_.candidates.front().string(), format_count_of(run_state.samples, "row"), rows));
  }
  if (trainer_) {
    const bool scaled = runtime_.policy().precision.needs_loss_scale();
    trainer_->state() = continued_state(point_.manifest, trainer_->state(), scaled);
    if (!state.found) trainer_->optimizer().set_steps(0);
    if (!state.child) trainer_->state().fisher_batches = 0;
  }
  log_.info(fmt::format("restart   {}   step {}, {} seen, saved by {}{}", name(), run_state.step,
                        format_count_of(run_state.samples, "sample"),
                        format_count_of(point_.manifest.world_size, "rank"),
                        point_.is_ours && state.found && state.remark.empty() ? "" : about_optimizer(state)));
  if (const auto& left = setup_.options.left_behind; !left.empty())
    log_.info(
        fmt::format("options   the run was started with {}, which a restart does not take over: give them again "
                    "where they are wanted",
                    fmt::join(left, " ")));
}

void Restore::take_weights(const OptimizerPlan& state) {
  auto& run_state = point_.manifest.state;
  const auto place = position_of(*point_.checkpoint, state);
  run_state.step = place.step;
  if (trainer_) {
    run_state = trainer_->state();  // with the initial loss scale for fp16
    run_state.step = place.step;
    run_state.samples = place.samples;
    run_state.optimizer_steps = state.steps;
    trainer_->state() = run_state;
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
Restore::Place Restore::position_of(const Checkpoint& checkpoint, const OptimizerPlan& state) const {
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

}  // namespace

RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log) {
  return Restore(world, setup, runtime, trainer, log).run();
}

}  // namespace fsdp::detail
