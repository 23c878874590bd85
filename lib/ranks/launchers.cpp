#include "lib/ranks/launchers.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace fsdp {
namespace {

struct Launcher {
  std::string_view name;
  const char* size = nullptr;  ///< variable with the number of processes; nullptr: it sets none
  const char* rank = nullptr;  ///< variable with this process's number, from 0; nullptr: it sets none
  std::string_view cure;
  const char* beside = nullptr;   ///< the entry applies only when this variable is set,
  const char* without = nullptr;  ///< and this one is not
};

/// Name, in messages, of hydra and the other launchers that set PMI variables.
constexpr std::string_view kHydra = "the launcher";
constexpr std::string_view kMpiexec = "Start with the mpiexec of the MPI that this program was built with";
constexpr std::string_view kSrun =
    "Start with srun --mpi=pmi2 (or pmix; `srun --mpi=list` shows what this site has), matching the MPI that this "
    "program was built with";
constexpr std::string_view kCray = "Build with the site's cray-mpich (set MPI_HOME)";

/// Innermost first, which is the order of precedence for this process's rank: a launcher may itself have been started
/// by one of the later entries.
constexpr std::array kLaunchers{
    Launcher{kHydra, "PMI_SIZE", "PMI_RANK", kMpiexec},
    Launcher{kHydra, nullptr, "PMIX_RANK", kMpiexec},
    Launcher{"PALS", "PALS_SIZE", "PALS_RANKID", kCray},
    Launcher{"mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", kMpiexec},
    Launcher{"MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
             "Build with the site's MVAPICH (set MPI_HOME), or start with the mpiexec of the MPI that this program was "
             "built with"},
    Launcher{"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK",
             "Start with flux run and the -o mpi=... and -o pmi=... that fit the MPI that this program was built with, "
             "or with the mpiexec of that MPI"},
    Launcher{"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "Build with the site's Spectrum MPI (set MPI_HOME)"},
    Launcher{"aprun", nullptr, "ALPS_APP_PE", kCray},
    // In a batch script these variables describe the job before any step has begun; within a step of a current Slurm,
    // the next entry is more precise.
    Launcher{"srun", "SLURM_NTASKS", "SLURM_PROCID", kSrun, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
    Launcher{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", kSrun},
    Launcher{kHydra, "MPI_LOCALNRANKS", "MPI_LOCALRANKID", kMpiexec},
    // Job scripts may set WORLD_SIZE for all their commands, and RANK is a common name, so torchrun counts only
    // when both are set.
    Launcher{"torchrun", nullptr, "RANK", "torchrun starts ranks of Python: start with mpiexec or srun", "WORLD_SIZE"},
    Launcher{"torchrun", "WORLD_SIZE", nullptr, "torchrun starts ranks of Python: start with mpiexec or srun", "RANK"},
};

const char* value_of(const char* variable) {
  const char* value = variable == nullptr ? nullptr : std::getenv(variable);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

bool is_above(const char* value, int number) { return value != nullptr && std::atoi(value) > number; }

bool counts(const Launcher& launcher) {
  return (launcher.beside == nullptr || value_of(launcher.beside) != nullptr) && value_of(launcher.without) == nullptr;
}

/// Ranks of hydra inherit the environment of its proxies, whose variables count hosts.
bool started_by_hydra() { return value_of("HYDI_CONTROL_FD") != nullptr || value_of("MPI_LOCALRANKID") != nullptr; }

/// The variables of launcher `name` that are set, as arguments of env(1).
std::string unset_all(std::string_view name) {
  std::string words;
  for (const auto& launcher : kLaunchers) {
    if (launcher.name != name) continue;
    for (const char* variable : {launcher.size, launcher.rank}) {
      const auto word = variable == nullptr ? "" : fmt::format(" -u {}", variable);
      if (value_of(variable) != nullptr && words.find(word) == std::string::npos) words += word;
    }
  }
  return words;
}

SeveralStarted describe(const Launcher& launcher, bool by_size) {
  const char* variable = by_size ? launcher.size : launcher.rank;
  const std::string_view thing = launcher.name == "srun" ? "task" : "process";
  SeveralStarted several;
  several.what = by_size ? fmt::format("{} started {} {}", launcher.name, value_of(variable),
                                       thing == "task" ? "tasks" : "processes")
                         : fmt::format("{} started this {} as rank {}", launcher.name, thing, value_of(variable));
  several.variable = fmt::format("{}={}", variable, value_of(variable));
  several.cure = fmt::format("{}; for one process by itself: env{} PROGRAM", launcher.cure, unset_all(launcher.name));
  several.first_rank_knows = by_size;
  return several;
}

/// Launchers under which MPI is initialised for a single rank, too.
bool has_mark_of_mpi() {
  for (const char* name : {"PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK",
                           "MPI_LOCALRANKID", "SLURM_STEP_NUM_TASKS"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::optional<SeveralStarted> told(bool by_size) {
  const bool hydra = started_by_hydra();
  for (const auto& launcher : kLaunchers) {
    if (!counts(launcher) || (hydra && launcher.name != kHydra)) continue;
    if (by_size ? is_above(value_of(launcher.size), 1) : is_above(value_of(launcher.rank), 0)) {
      return describe(launcher, by_size);
    }
  }
  return std::nullopt;
}

/// Tasks of pbsdsh are numbered from 2; task 1 is the job script. A launcher that uses pbsdsh to reach hosts sets its
/// own variables for the number of ranks.
std::optional<SeveralStarted> told_by_pbs() {
  const char* task = value_of("PBS_TASKNUM");
  if (!is_above(task, 1) || has_mark_of_mpi()) return std::nullopt;
  return SeveralStarted{fmt::format("pbsdsh started this process as task {} of the job", task),
                        fmt::format("PBS_TASKNUM={}", task),
                        "Start with mpiexec, as pbs/mingpt.pbs does; for one process by itself: env -u PBS_TASKNUM "
                        "PROGRAM"};
}

}  // namespace

std::optional<SeveralStarted> several_started() {
  if (auto several = told(true)) return several;
  if (auto several = told(false)) return several;
  return told_by_pbs();
}

bool launched_by_mpi() { return has_mark_of_mpi() || several_started().has_value(); }

std::string launcher_rank() {
  for (const auto& launcher : kLaunchers) {
    if (const char* rank = value_of(launcher.rank); rank != nullptr && counts(launcher)) return rank;
  }
  return "";
}

}  // namespace fsdp
