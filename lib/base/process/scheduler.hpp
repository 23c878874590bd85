#pragma once
// Environment variables that schedulers and launchers set for the processes that they start. Their only list: a
// scheduler or launcher is a row of a table in scheduler.cpp.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// This process's job, as messages call it: "Slurm job 42", "PBS job 7.head"; "" outside of jobs.
std::string scheduler_job();

/// True in a task of an array of jobs, which the scheduler starts from one script.
bool in_job_array();

/// This node's name in the scheduler; "" outside of jobs and where the scheduler has no name of its own for nodes.
std::string scheduler_node();
/// The node's name in the scheduler, so that lists of hosts can be passed back to it; otherwise the host's short name.
std::string host_name();

/// The time at which the scheduler will end this job.
struct JobEnd {
  std::chrono::system_clock::time_point time;
  std::string variable;  ///< the variable that says so
};
/// \return nullopt when unknown
std::optional<JobEnd> scheduler_end_time();

/// The size of a job.
struct JobSize {
  int nodes = 1;
  int ranks_per_node = 1;
  int gpus_per_node = 0;  ///< 0: none
  std::int64_t memory_gib_per_node = 0;
};
/// A comment line for each scheduler with the options that ask for a job of this size.
std::string scheduler_requests(const JobSize& size);

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
/// False only when a launcher says that another process of this host comes before this one.
bool first_of_its_host();
/// Processes of the job on this host, as a launcher says; 0 when unknown.
int ranks_on_this_host();

/// The process-management protocol of the launcher that started this process.
enum class LauncherKind {
  none,
  open_mpi,  ///< mpirun of Open MPI, which starts ranks of Open MPI only
  pmix,      ///< PMIx without a sign of Open MPI: srun --mpi=pmix, which starts ranks of every MPI that knows PMIx
  other      ///< hydra, PMI 1 or 2, PALS, ...
};
LauncherKind launcher_kind();

/// True for the variables by which launchers tell a process that it is one of several.
/// \param variable  a name, or an entry of the environment ("NAME=value")
bool belongs_to_launcher(std::string_view variable);

}  // namespace fsdp
