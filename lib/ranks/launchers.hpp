#pragma once
// What launchers and schedulers leave in the environment of the processes that they start: the one list of them.
#include <optional>
#include <string>

namespace fsdp {

/// That a launcher started more processes than this one.
struct SeveralStarted {
  std::string what;               ///< "srun started 4 tasks"
  std::string variable;           ///< that says so, with its value
  std::string cure;               ///< a sentence, and what to do where one process alone is meant
  bool first_rank_knows = false;  ///< rank 0 is told of the others, too, so that one message is enough
};

/// What the launcher nearest to this process says; nullopt where none says that there are several: no launcher, one
/// process, or a batch script or shell of a job, where the scheduler speaks of tasks that nobody has started.
std::optional<SeveralStarted> several_started();

/// True when the environment says that a launcher (mpiexec, srun, PALS, ...) started this process, so that MPI is to
/// start: it alone knows how many ranks there are.
bool launched_by_mpi();

/// This process's rank as the launcher's environment tells it, before MPI is up; "" when it does not.
std::string launcher_rank();

}  // namespace fsdp
