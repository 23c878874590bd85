#pragma once
// The reference of a run's preferences: computed once, kept in OUT/token-cache.
#include <functional>
#include <optional>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/restart.hpp"

namespace fsdp::detail {

/// Gives the preferences of training and validation their log-probabilities by the reference: from a file that the user
/// names or that an earlier job left, or computed by `runtime`, as its weights are before the first step, or by the
/// weights of another model, which are loaded beside them. Nothing without an objective that has a reference.
/// Collective. \param taken  the checkpoint that was loaded, if there is one \throws RequestError when the reference of
/// a run that goes on is gone; RuntimeFailure when it was stopped
void prepare_reference(ProcessGroup& world, RunSetup& setup, ModelRuntime& runtime,
                       const std::optional<RestartPoint>& taken, const Logger& log,
                       const std::function<bool()>& stop_wanted);

}  // namespace fsdp::detail
