#pragma once
// How a job takes up a checkpoint.
#include "apps/finetune/run_setup.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

/// Fills runtime and trainer from setup.restart, or an older checkpoint where that turns out damaged; says which.
/// Collective. \param trainer  null: evaluation only. \return what was taken
RestartPoint restore(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, Trainer* trainer,
                     const Logger& log);

}  // namespace fsdp::detail
