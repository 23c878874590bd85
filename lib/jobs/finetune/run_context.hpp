#pragma once
// What all parts of a training job hold.
#include "lib/base/log.hpp"
#include "lib/jobs/finetune/run_setup.hpp"
#include "lib/runtime/model_runtime.hpp"
#include "lib/train/progress.hpp"
#include "lib/train/trainer.hpp"

namespace fsdp::detail {

struct RunContext {
  ProcessGroup& world;
  const Logger& log;
  const RunSetup& setup;
  ModelRuntime& runtime;
  Trainer& trainer;
  ProgressLine& progress;

  RunManifest manifest() const { return manifest_of(setup, trainer.state(), world.size()); }
  double current_lr() const { return setup.schedule.at(std::max<std::int64_t>(1, trainer.state().step)); }
};

}  // namespace fsdp::detail
