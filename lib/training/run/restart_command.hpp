#pragma once
// The command that resumes a run that was stopped.
#include <filesystem>
#include <optional>
#include <string>

#include "lib/training/step/train_options.hpp"

namespace fsdp {

// Paths in checkpoints, from which a run goes on in whatever folder it is started.

/// `path` as a checkpoint keeps it: absolute; the original of a copy below FSDP_STAGED, the folder of the nodes to
/// which job scripts copy inputs; as it stands where only the working folder's name is no UTF-8, which strings in
/// checkpoints must be. Nothing when `path` itself is none.
std::optional<std::string> saved_path(const std::string& path);

}  // namespace fsdp

namespace fsdp::detail {

/// The beginning of a command for a shell in any folder: "mpiexec -n 2 fsdp-finetune". A program that was started by a
/// path has its absolute path, and its ranks are started by the `mpiexec` beside the program, if there is one.
std::string program_command(const std::filesystem::path& program, int ranks);

/// A whole command for a shell in any folder, which does what this job did; all that it leaves out is in the
/// checkpoint. It begins with program_command().
/// \param ranks  of the run; the command may be given any other number
std::string restart_command(const TrainOptions& options, int ranks);

}  // namespace fsdp::detail
