#pragma once
// The state of a run from a checkpoint: the one that was asked for, or an older one of its run where that is damaged.
#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

/// Loads runtime and trainer from setup.restart, or from an older checkpoint when the newest one is damaged, and logs
/// which one was loaded. Collective.
/// \param trainer  null: evaluation only
/// \return the checkpoint that was loaded
RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log);

}  // namespace fsdp::detail
