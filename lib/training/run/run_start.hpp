#pragma once
// How a training job begins, before all of its options are known: a checkpoint that it goes on from has some of them.
#include <memory>
#include <optional>

#include "lib/base/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/checkpoints/restart.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/run_owner.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct RunStart {
  /// Makes the run's folder this job's, then finds the checkpoint: a job that is about to end may still save one.
  /// Collective. \throws Error subclasses
  RunStart(ProcessGroup& world, const TrainOptions& options, const Logger& log);

  detail::RunClock clock;
  std::unique_ptr<RunOwner> owner;      ///< null where nothing is trained
  std::optional<RestartPoint> restart;  ///< nothing: from the start
};

}  // namespace fsdp
