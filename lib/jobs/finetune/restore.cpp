#include "lib/jobs/finetune/restore.hpp"

#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/checkpoint/import_state.hpp"
#include "lib/checkpoint/load.hpp"
#include "lib/checkpoint/restart.hpp"
#include "lib/mpi/agree.hpp"

namespace fsdp::detail {
namespace {

/// Where a run stands; but the scale of fp16's losses belongs to the precision. A checkpoint in another one has none to
/// go on from: then as a new run begins. \param fresh  a new run's state, in the precision of this one
RunState continued_state(const RunManifest& saved, const RunState& fresh, bool is_half) {
  auto state = saved.state;
  std::string precision;
  if (saved.options.is_object()) precision = saved.options.value("precision", std::string());
  // fp16 given by --param-dtype is not saved, but its scale is hardly ever 1.
  const bool was_half = state.loss_scale != 1.0 || precision == "fp16" || precision == "float16";
  if (was_half != is_half) {
    state.loss_scale = fresh.loss_scale;
    state.good_steps = fresh.good_steps;
  }
  return state;
}

/// One restart: the point may move to an older checkpoint on the way.
class Restore {
 public:
  Restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer, const Logger& log)
      : world_(world), setup_(setup), runtime_(runtime), trainer_(trainer), log_(log), point_(*setup.restart) {}

  RestartPoint run();

 private:
  bool try_checkpoint(const std::filesystem::path& checkpoint);
  void take_external();
  /// Where a run from a checkpoint without run.json goes on, and why, for the log.
  struct Place {
    std::int64_t step = 0, samples = 0;
    std::string text;
  };
  Place external_place(const ExternalCheckpoint& external, const ExternalOptimizer& state) const;
  std::string about_optimizer(const ExternalOptimizer& state) const;

  ProcessGroup& world_;
  const RunSetup& setup_;
  ModelRuntime& runtime_;
  Trainer* trainer_;
  const Logger& log_;
  RestartPoint point_;
};

RestartPoint Restore::run() {
  if (point_.external != nullptr) {
    take_external();
    return point_;
  }
  while (!try_checkpoint(point_.candidates.front())) {
    point_.candidates.erase(point_.candidates.begin());
    take_first_usable(world_, point_, log_);
  }
  runtime_.engine().sync_parameters();
  const auto& state = point_.manifest.state;
  if (trainer_) {
    const bool is_half = runtime_.policy().precision.param_dtype == at::kHalf;
    trainer_->state() = continued_state(point_.manifest, trainer_->state(), is_half);
  }
  log_.info(fmt::format("restart   {}   step {}, {} seen, saved by {}", point_.candidates.front().string(), state.step,
                        format_count_of(state.samples, "sample"), format_count_of(point_.manifest.world_size, "rank")));
  return point_;
}

/// False when the checkpoint turned out damaged on some rank and an older one may be tried.
bool Restore::try_checkpoint(const std::filesystem::path& checkpoint) {
  std::string problem;
  const bool last_chance = point_.candidates.size() == 1;
  try {
    load_checkpoint_parameters(runtime_, checkpoint);
    if (trainer_) load_checkpoint_optimizer(runtime_, trainer_->optimizer(), checkpoint, point_.manifest.state);
  } catch (const FormatError& error) {
    problem = error.what();
  }
  if (last_chance) fail_together(world_, problem);
  return agree_on_checkpoint(world_, problem, checkpoint, !last_chance, log_);
}

/// A checkpoint that has no run.json is taken as it is: nothing older is tried.
void Restore::take_external() {
  const auto& external = *point_.external;
  ExternalOptimizer state;
  if (trainer_) state = plan_optimizer_state(external, setup_.config);
  load_external(runtime_, external, trainer_ ? &trainer_->optimizer() : nullptr, state);
  runtime_.engine().sync_parameters();
  auto& stood = point_.manifest.state;
  const auto file = fmt::format("{} ({})", external.path().string(), external.source().info().format);
  if (external.run()) {
    if (trainer_) {
      const bool is_half = runtime_.policy().precision.param_dtype == at::kHalf;
      trainer_->state() = continued_state(point_.manifest, trainer_->state(), is_half);
      if (!state.found) trainer_->optimizer().set_steps(0);
    }
    log_.info(fmt::format("restart   {}   step {}, {} seen, saved by {}{}", file, stood.step,
                          format_count_of(stood.samples, "sample"), format_count_of(point_.manifest.world_size, "rank"),
                          about_optimizer(state)));
    return;
  }
  const auto place = external_place(external, state);
  stood.step = place.step;
  if (trainer_) {
    stood = trainer_->state();  // fp16's loss scale starts anew
    stood.step = place.step;
    stood.samples = place.samples;
    stood.optimizer_steps = state.steps;
    trainer_->state() = stood;
  }
  log_.info(fmt::format("restart   {}   {}{}; the file has no {}: these are as the command line says", file, place.text,
                        about_optimizer(state),
                        place.step == 0 ? "options or random state" : "data position, options or random state"));
}

/// Where a run goes on when only a number of steps or epochs is known.
Restore::Place Restore::external_place(const ExternalCheckpoint& external, const ExternalOptimizer& state) const {
  Place place;
  const auto product = [&](std::int64_t a, std::int64_t b, const char* what) {
    std::int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result))
      throw FormatError(fmt::format("{}: {} {} are more than can be counted", external.path().string(), a, what));
    return result;
  };
  const auto per_step = setup_.batches.rows_per_step;
  if (external.step()) {
    place.step = external.step()->second;
    place.samples = product(place.step, per_step, "steps");
    place.text = fmt::format("step {} (its '{}')", place.step, external.step()->first);
  } else if (external.epochs_done() && setup_.train_data) {
    place.samples = product(*external.epochs_done(), setup_.train_data->num_rows(), "epochs");
    place.step = (place.samples + per_step / 2) / per_step;
    place.text = fmt::format(
        "after {} of {} (its 'epoch_number' {}): step {}", format_count_of(*external.epochs_done(), "epoch"),
        format_count_of(setup_.train_data->num_rows(), "row"), *external.epochs_done() - 1, place.step);
  } else {
    place.step = state.steps;
    place.samples = product(place.step, per_step, "steps");
    place.text = fmt::format("step {}{}", place.step, state.found ? " (its optimizer's)" : "");
  }
  return place;
}

std::string Restore::about_optimizer(const ExternalOptimizer& state) const {
  if (!trainer_) return "";
  const auto remark = state.remark.empty() ? "" : " (" + state.remark + ")";
  if (!state.found) return "   without AdamW state, it starts anew" + remark;
  return fmt::format("   AdamW state of {}{}", format_count_of(state.steps, "step"), remark);
}

}  // namespace

RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log) {
  return Restore(world, setup, runtime, trainer, log).run();
}

}  // namespace fsdp::detail
