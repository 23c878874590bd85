#pragma once
// The command that resumes a run that was stopped.
#include <string>

#include "lib/training/step/train_options.hpp"

namespace fsdp::detail {

/// A whole command for a shell in any folder; all that it leaves out is in the checkpoint or was told when the run was restarted.
std::string restart_command(const TrainOptions& options);

}  // namespace fsdp::detail
