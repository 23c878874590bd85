#pragma once
// Loads the checkpoint that a job continues from.
#include "apps/finetune/run_setup.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

/// Loads runtime and trainer from setup.restart, or from an older checkpoint when the newest one is damaged, and logs
/// which one was loaded. Collective.
/// \param trainer  null: evaluation only
/// \return the checkpoint that was loaded
RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log);

}  // namespace fsdp::detail
