#pragma once
// The command that resumes a run that was stopped.
#include <filesystem>
#include <string>

#include "lib/training/step/train_options.hpp"

namespace fsdp::detail {

/// The beginning of a command for a shell in any folder: "mpiexec -n 2 fsdp-finetune". A program that was started by a
/// path has its absolute path, and its ranks are started by the `mpiexec` beside the program, if there is one.
std::string program_command(const std::filesystem::path& program, int ranks);

/// A whole command for a shell in any folder, which does what this job did; all that it leaves out is in the
/// checkpoint. It begins with program_command().
/// \param ranks  of the run; the command may be given any other number
std::string restart_command(const TrainOptions& options, int ranks);

}  // namespace fsdp::detail
