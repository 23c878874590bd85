#pragma once
// The text of --prompt, which the model continues at the end of a job.
#include <functional>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// Does nothing without --prompt. Collective.
/// \param stopped  called on all ranks after each token
/// \return false when stopped: the text then ends early
bool generate_text(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                   const std::function<bool()>& stopped, const Logger& log);

}  // namespace fsdp::detail
