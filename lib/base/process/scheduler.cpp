#include "lib/base/process/scheduler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace fsdp {
namespace {

const char* value_of(const char* variable) {
  const char* value = variable == nullptr ? nullptr : std::getenv(variable);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::string slurm_request(const JobSize& job) {
  return fmt::format("--nodes={} --ntasks-per-node={}{} --mem={}G", job.nodes, job.ranks_per_node,
                     job.gpus_per_node == 0 ? "" : fmt::format(" --gres=gpu:{}", job.gpus_per_node),
                     job.memory_gib_per_node);
}

std::string pbs_request(const JobSize& job) {
  return fmt::format("-l select={}:mpiprocs={}{}:mem={}gb", job.nodes, job.ranks_per_node,
                     job.gpus_per_node == 0 ? "" : fmt::format(":ngpus={}", job.gpus_per_node),
                     job.memory_gib_per_node);
}

/// nullptr for a variable: this scheduler does not tell.
struct Scheduler {
  std::string_view name;             ///< in messages
  const char* job = nullptr;         ///< variable with the job's number
  const char* end_time = nullptr;    ///< variable with the time at which the job will be ended, in seconds since 1970
  const char* node = nullptr;        ///< variable with the node's name in the scheduler, in place of the host's
  const char* array_task = nullptr;  ///< variable that only tasks of an array of jobs have
  std::string (*request)(const JobSize&) = nullptr;  ///< options of its command of submission
};

constexpr std::array kSchedulers{
    Scheduler{.name = "Slurm",
              .job = "SLURM_JOB_ID",
              .end_time = "SLURM_JOB_END_TIME",
              .node = "SLURMD_NODENAME",
              .array_task = "SLURM_ARRAY_TASK_ID",
              .request = slurm_request},
    Scheduler{.name = "PBS", .job = "PBS_JOBID", .array_task = "PBS_ARRAY_INDEX", .request = pbs_request},
};

struct Launcher {
  std::string_view name;
  std::string_view cure;
  const char* size = nullptr;                  ///< variable with the number of processes; nullptr: it sets none
  const char* rank = nullptr;                  ///< variable with this process's number, from 0; nullptr: it sets none
  const char* beside = nullptr;                ///< the entry applies only when this variable is set,
  const char* without = nullptr;               ///< and this one is not
  const char* local_size = nullptr;            ///< variable with the number of processes on this host
  const char* local_rank = nullptr;            ///< variable with this process's number on its host, from 0
  std::array<const char*, 3> of_mpi{};         ///< any of them is set: MPI is initialised, for a single rank, too
  LauncherKind kind = LauncherKind::none;      ///< that the variables in of_mpi tell; none: nothing
  std::array<std::string_view, 5> prefixes{};  ///< of further variables that only processes of a job have
};

/// Name, in messages, of hydra and the other launchers that set PMI variables.
constexpr std::string_view kHydra = "the launcher";
constexpr std::string_view kMpiexec = "Start with the mpiexec of the MPI that this program was built with";
constexpr std::string_view kOpenMpi =
    "Load the module of this Open MPI, whose libmpi.so.40 was not found, or start with the mpiexec of the MPI that "
    "this "
    "program was built with";
constexpr std::string_view kSrun =
    "Start with srun --mpi=pmi2, or pmix with a module of Open MPI loaded (`srun --mpi=list` shows what this site "
    "has), "
    "matching the MPI that this program was built with";
constexpr std::string_view kCray = "Build with the site's cray-mpich (set MPI_HOME)";
constexpr std::string_view kTorchrun =
    "torchrun starts ranks of Python, which find each other without MPI: start with srun --mpi=pmi2 (or pmix) in a "
    "Slurm job, or with the mpiexec of the MPI that this program was built with";

/// Innermost first, which is the order of precedence for this process's rank: a launcher may itself have been started
/// by one of the later entries.
constexpr std::array kLaunchers{
    Launcher{.name = kHydra,
             .cure = kMpiexec,
             .size = "PMI_SIZE",
             .rank = "PMI_RANK",
             .local_size = "MPI_LOCALNRANKS",
             .local_rank = "MPI_LOCALRANKID",
             .of_mpi = {"PMI_RANK", "PMI_FD", "PMI_PORT"},
             .kind = LauncherKind::other,
             .prefixes = {"PMI_", "HYDRA_", "HYDI_", "MPI_", "MPIR_"}},
    Launcher{.name = kHydra,
             .cure = kMpiexec,
             .rank = "PMIX_RANK",
             .of_mpi = {"PMIX_RANK"},
             .kind = LauncherKind::pmix,
             .prefixes = {"PMIX_"}},
    Launcher{.name = "PALS",
             .cure = kCray,
             .size = "PALS_SIZE",
             .rank = "PALS_RANKID",
             .local_rank = "PALS_LOCAL_RANKID",
             .of_mpi = {"PALS_RANKID"},
             .kind = LauncherKind::other,
             .prefixes = {"PALS_"}},
    Launcher{.name = "mpirun of Open MPI",
             .cure = kOpenMpi,
             .size = "OMPI_COMM_WORLD_SIZE",
             .rank = "OMPI_COMM_WORLD_RANK",
             .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
             .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
             .of_mpi = {"OMPI_COMM_WORLD_RANK"},
             .kind = LauncherKind::open_mpi,
             .prefixes = {"OMPI_"}},
    Launcher{.name = "MVAPICH",
             .cure = "Build with the site's MVAPICH (set MPI_HOME), or start with the mpiexec of the MPI that this "
                     "program was built with",
             .size = "MV2_COMM_WORLD_SIZE",
             .rank = "MV2_COMM_WORLD_RANK"},
    Launcher{.name = "Flux",
             .cure = "Start with flux run and the -o mpi=... and -o pmi=... that fit the MPI that this program was "
                     "built with, or with the mpiexec of that MPI",
             .size = "FLUX_JOB_SIZE",
             .rank = "FLUX_TASK_RANK"},
    Launcher{.name = "jsrun",
             .cure = "Build with the site's Spectrum MPI (set MPI_HOME)",
             .size = "JSM_NAMESPACE_SIZE",
             .rank = "JSM_NAMESPACE_RANK"},
    Launcher{.name = "aprun", .cure = kCray, .rank = "ALPS_APP_PE"},
    // Before srun, which starts one torchrun on each node.
    Launcher{.name = "torchrun",
             .cure = kTorchrun,
             .size = "WORLD_SIZE",
             .rank = "RANK",
             .beside = "TORCHELASTIC_RUN_ID",
             .prefixes = {"TORCHELASTIC_"}},
    // In a batch script these variables describe the job before any step has begun; within a step of a current Slurm,
    // the next entry is more precise.
    Launcher{.name = "srun",
             .cure = kSrun,
             .size = "SLURM_NTASKS",
             .rank = "SLURM_PROCID",
             .beside = "SLURM_STEP_ID",
             .without = "SLURM_STEP_NUM_TASKS",
             .local_rank = "SLURM_LOCALID",
             .prefixes = {"SLURM_"}},
    Launcher{.name = "srun",
             .cure = kSrun,
             .size = "SLURM_STEP_NUM_TASKS",
             .rank = "SLURM_PROCID",
             .of_mpi = {"SLURM_STEP_NUM_TASKS"}},
    Launcher{.name = kHydra,
             .cure = kMpiexec,
             .size = "MPI_LOCALNRANKS",
             .rank = "MPI_LOCALRANKID",
             .of_mpi = {"MPI_LOCALRANKID"}},
    // Job scripts may set WORLD_SIZE for all their commands, and RANK is a common name, so the older
    // torch.distributed.launch counts only when both are set.
    Launcher{.name = "torchrun", .cure = kTorchrun, .rank = "RANK", .beside = "WORLD_SIZE"},
    Launcher{.name = "torchrun", .cure = kTorchrun, .size = "WORLD_SIZE", .beside = "RANK"},
};

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
  several.cure = launcher.cure;
  if (by_size && (launcher.cure == kMpiexec || launcher.cure == kTorchrun))
    several.cure += fmt::format(": mpiexec -n {} {} ...", value_of(variable), ::program_invocation_short_name);
  several.cure += fmt::format("; for one process by itself: env{} PROGRAM", unset_all(launcher.name));
  several.first_rank_knows = by_size;
  return several;
}

/// Launchers under which MPI is initialised for a single rank, too.
bool has_mark_of_mpi() {
  for (const auto& launcher : kLaunchers) {
    for (const char* variable : launcher.of_mpi) {
      if (variable != nullptr && std::getenv(variable) != nullptr) return true;
    }
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

constexpr const char* kPbsTask = "PBS_TASKNUM";

/// Tasks of pbsdsh are numbered from 2; task 1 is the job script. A launcher that uses pbsdsh to reach hosts sets its
/// own variables for the number of ranks.
std::optional<SeveralStarted> told_by_pbs() {
  const char* task = value_of(kPbsTask);
  if (!is_above(task, 1) || has_mark_of_mpi()) return std::nullopt;
  return SeveralStarted{fmt::format("pbsdsh started this process as task {} of the job", task),
                        fmt::format("{}={}", kPbsTask, task),
                        "Start with mpiexec, as pbs/mingpt.pbs does; for one process by itself: env -u PBS_TASKNUM "
                        "PROGRAM"};
}

}  // namespace

std::string scheduler_job() {
  for (const auto& scheduler : kSchedulers) {
    if (const char* id = value_of(scheduler.job)) return fmt::format("{} job {}", scheduler.name, id);
  }
  return "";
}

bool in_job_array() {
  return std::ranges::any_of(kSchedulers,
                             [](const auto& scheduler) { return value_of(scheduler.array_task) != nullptr; });
}

std::string scheduler_node() {
  for (const auto& scheduler : kSchedulers) {
    if (const char* name = value_of(scheduler.node)) return name;
  }
  return "";
}

std::string host_name() {
  if (auto name = scheduler_node(); !name.empty()) return name;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  const std::string full(name.data());
  return full.substr(0, full.find('.'));
}

std::optional<JobEnd> scheduler_end_time() {
  for (const auto& scheduler : kSchedulers) {
    const char* text = value_of(scheduler.end_time);
    const auto seconds = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
    constexpr std::int64_t kLast = 9'000'000'000;  // largest time that the clock's nanoseconds can represent
    if (seconds > 0 && seconds <= kLast) {
      return JobEnd{std::chrono::system_clock::time_point(std::chrono::seconds(seconds)), scheduler.end_time};
    }
  }
  return std::nullopt;
}

std::string scheduler_requests(const JobSize& size) {
  std::string lines;
  for (const auto& scheduler : kSchedulers) {
    if (scheduler.request == nullptr) continue;
    lines += fmt::format("# {:<8}{}\n", fmt::format("{}:", scheduler.name), scheduler.request(size));
  }
  return lines;
}

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

bool first_of_its_host() {
  for (const auto& launcher : kLaunchers) {
    const char* rank = launcher.local_rank == nullptr ? nullptr : std::getenv(launcher.local_rank);
    if (rank != nullptr) return std::string_view(rank) == "0";
  }
  return true;
}

int ranks_on_this_host() {
  for (const auto& launcher : kLaunchers) {
    if (const char* size = value_of(launcher.local_size)) return std::max(std::atoi(size), 1);
  }
  return 0;
}

LauncherKind launcher_kind() {
  auto kind = launched_by_mpi() ? LauncherKind::other : LauncherKind::none;
  for (const auto& launcher : kLaunchers) {
    const bool is_marked =
        std::ranges::any_of(launcher.of_mpi, [](const char* name) { return value_of(name) != nullptr; });
    if (!is_marked || launcher.kind == LauncherKind::none) continue;
    kind = launcher.kind;
    if (kind != LauncherKind::pmix) break;  // Open MPI's launcher sets the variables of PMIx, too
  }
  return kind;
}

bool belongs_to_launcher(std::string_view variable) {
  const auto name = variable.substr(0, variable.find('='));
  for (const auto& launcher : kLaunchers) {
    for (const char* one : {launcher.size, launcher.rank}) {
      if (one != nullptr && name == one) return true;
    }
    for (const auto prefix : launcher.prefixes) {
      if (!prefix.empty() && name.starts_with(prefix)) return true;
    }
  }
  return name == kPbsTask;
}

}  // namespace fsdp
