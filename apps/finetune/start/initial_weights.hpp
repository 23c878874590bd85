#pragma once
// The weights that a job begins with: from a checkpoint, from a folder, or new ones.
#include <optional>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

/// Fills the weights from a checkpoint, from a folder of weights, or with new ones. \return the checkpoint that was
/// used. Collective. \param trainer  null: evaluation only
std::optional<RestartPoint> fill_weights(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                                         Trainer* trainer, const Logger& log);

/// \return what of the model's folder, and of the adapter in peft's format, has no influence on the run; on rank 0.
/// Collective
Ignored ignored_in_folders(ProcessGroup& world, const RunSetup& setup);

}  // namespace fsdp::detail
