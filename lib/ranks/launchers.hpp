#pragma once
// The environment variables that launchers and schedulers set for the processes they start. Their only list.
#include <optional>
#include <string>

namespace fsdp {

/// Evidence that a launcher started more processes than this one.
struct SeveralStarted {
  std::string what;               ///< "srun started 4 tasks"
  std::string variable;           ///< the variable that says so, with its value
  std::string cure;               ///< a sentence with the cure, including the one for a single process
  bool first_rank_knows = false;  ///< rank 0 detects the others, too, so that its message is enough
};

/// Evidence from the innermost launcher of this process; nullopt when there is no launcher, when it started one
/// process, and in a batch script or shell of a job, where the scheduler announces tasks that were not started.
std::optional<SeveralStarted> several_started();

/// True when the environment shows that a launcher (mpiexec, srun, PALS, ...) started this process. MPI must then be
/// initialised, because only MPI knows the number of ranks.
bool launched_by_mpi();

/// This process's rank according to the launcher's environment, for use before MPI_Init; "" when unknown.
std::string launcher_rank();

}  // namespace fsdp
