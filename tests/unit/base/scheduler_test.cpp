#include "lib/base/process/scheduler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/environment.hpp"

namespace {

using fsdp::test::Environment;
using Variables = Environment::Variables;

struct Told {
  Variables variables;
  std::string what;      ///< part of what is said, also the variable
  std::string cure;      ///< part of it
  bool by_first = true;  ///< rank 0 is told, too
};

const std::vector<Told> kSeveral{
    {{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}},
     "srun started 2 tasks SLURM_STEP_NUM_TASKS=2",
     "--mpi=pmi2"},
    {{{"SLURM_STEP_NUM_TASKS", "2(x3)"}}, "srun started 2(x3) tasks", "srun --mpi=list"},
    {{{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}},
     "srun started 2 tasks SLURM_NTASKS=2",
     "srun"},
    {{{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}}, "rank 1 SLURM_PROCID=1", "srun", false},
    {{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}, "2 processes OMPI_COMM_WORLD_SIZE=2", "mpiexec"},
    {{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"PBS_JOBID", "1.x"}}, "2 processes PMI_SIZE=2", "mpiexec"},
    {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "a"}}, "rank 1 PMIX_RANK=1", "mpiexec", false},
    {{{"PALS_SIZE", "2"}, {"PALS_RANKID", "1"}}, "PALS started 2 processes PALS_SIZE=2", "cray-mpich"},
    {{{"PALS_RANKID", "1"}, {"PALS_LOCAL_RANKID", "1"}}, "PALS started this process as rank 1", "cray-mpich", false},
    {{{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}, "2 processes MPI_LOCALNRANKS=2", "mpiexec"},
    {{{"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_RANK", "1"}}, "MVAPICH started 2 processes", "MVAPICH"},
    {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "1"}}, "Flux started 2 processes", "flux run"},
    {{{"JSM_NAMESPACE_SIZE", "2"}, {"JSM_NAMESPACE_RANK", "1"}}, "jsrun started 2 processes", "Spectrum"},
    {{{"ALPS_APP_PE", "1"}}, "aprun started this process as rank 1", "cray-mpich", false},
    {{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"LOCAL_RANK", "1"}}, "torchrun started 2 processes WORLD_SIZE=2", "mpiexec"},
    {{{"WORLD_SIZE", "2"}, {"RANK", "0"}}, "torchrun started 2 processes", "-u WORLD_SIZE"},
    {{{"WORLD_SIZE", "8"}, {"RANK", "5"}, {"TORCHELASTIC_RUN_ID", "none"}},
     "torchrun started 8 processes",
     "mpiexec -n 8 unit_base ..."},
    {{{"PBS_TASKNUM", "2"}, {"PBS_NODENUM", "1"}}, "pbsdsh PBS_TASKNUM=2", "env -u PBS_TASKNUM", false},
};

const std::vector<Variables> kOne{
    {},
    {{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "1"}},                         // salloc
    {{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_NPROCS", "4"}, {"SLURM_PROCID", "0"}},  // sbatch
    {{"SLURM_NTASKS", "3(x2)"}},
    {{"SLURM_STEP_NUM_TASKS", ""}},
    {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
    {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
    {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}},
    {{"FLUX_JOB_SIZE", "1"}, {"FLUX_TASK_RANK", "0"}},
    {{"ALPS_APP_PE", "0"}},
    {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n1"}},  // exported by a batch script
    {{"RANK", "16"}},
    {{"PBS_TASKNUM", "1"}, {"PBS_NODENUM", "0"}, {"PBS_ENVIRONMENT", "PBS_BATCH"}},
    // mpiexec -n 1, whose proxy was started by srun on the second of two hosts, by pbs_tmrsh, in a job of torchrun
    {{"HYDI_CONTROL_FD", "7"},
     {"PMI_SIZE", "1"},
     {"PMI_RANK", "0"},
     {"MPI_LOCALRANKID", "0"},
     {"MPI_LOCALNRANKS", "1"},
     {"SLURM_STEP_NUM_TASKS", "2"},
     {"SLURM_PROCID", "1"},
     {"SLURM_STEP_ID", "0"},
     {"SLURM_NTASKS", "2"}},
    {{"HYDI_CONTROL_FD", "7"},
     {"PMI_SIZE", "1"},
     {"PMI_RANK", "0"},
     {"PBS_TASKNUM", "3"},
     {"WORLD_SIZE", "2"},
     {"RANK", "1"}},
    // mpirun -n 1 of Open MPI, whose daemon PBS started
    {{"PBS_TASKNUM", "2"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
};

std::string text_of(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += name + "=" + value + " ";
  return text;
}

bool holds_words(const std::string& text, const std::string& words) {
  for (std::size_t begin = 0; begin < words.size();) {
    const auto end = std::min(words.find(' ', begin), words.size());
    if (text.find(words.substr(begin, end - begin)) == std::string::npos) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

TEST_SUITE("base/scheduler") {
  TEST_CASE("one of several is known by the variables of its launcher") {
    for (const auto& expected : kSeveral) {
      CAPTURE(text_of(expected.variables));
      const Environment environment(expected.variables);
      const auto several = fsdp::several_started();
      REQUIRE(several.has_value());
      CHECK_MESSAGE(holds_words(several->what + " " + several->variable, expected.what), several->what);
      CHECK_MESSAGE(several->cure.find(expected.cure) != std::string::npos, several->cure);
      CHECK(several->first_rank_knows == expected.by_first);
      CHECK(fsdp::launched_by_mpi());
    }
  }

  TEST_CASE("what is said helps: without these variables the process is one by itself") {
    for (const auto& expected : kSeveral) {
      CAPTURE(text_of(expected.variables));
      auto variables = expected.variables;
      {
        const Environment environment(variables);
        const auto cure = fsdp::several_started()->cure;
        for (const auto& [name, value] : expected.variables) {
          if (cure.find("-u " + name) != std::string::npos) variables.erase(name);
        }
      }
      const Environment environment(variables);
      CHECK(!fsdp::several_started().has_value());
    }
  }

  TEST_CASE("srun that starts a torchrun on each node: the ranks are torchrun's") {
    const Environment environment({{"WORLD_SIZE", "8"},
                                   {"RANK", "5"},
                                   {"TORCHELASTIC_RUN_ID", "7"},
                                   {"SLURM_STEP_ID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_PROCID", "1"}});
    CHECK(fsdp::several_started()->what == "torchrun started 8 processes");
    CHECK(fsdp::launcher_rank() == "5");
  }

  TEST_CASE("one process, a batch script and a shell of a job are one rank") {
    for (const auto& variables : kOne) {
      CAPTURE(text_of(variables));
      const Environment environment(variables);
      CHECK(!fsdp::several_started().has_value());
    }
  }

  TEST_CASE("a process's rank is the one of the launcher nearest to it") {
    const auto rank = [](const Variables& variables) {
      const Environment environment(variables);
      return fsdp::launcher_rank();
    };
    CHECK(rank({}) == "");
    CHECK(rank({{"SLURM_PROCID", "3"}}) == "3");
    CHECK(rank({{"PMI_RANK", "5"}, {"SLURM_PROCID", "1"}}) == "5");
    CHECK(rank({{"FLUX_TASK_RANK", "2"}}) == "2");
    CHECK(rank({{"WORLD_SIZE", "2"}, {"RANK", "1"}}) == "1");
    CHECK(rank({{"RANK", "1"}}) == "");
  }

  TEST_CASE("a job is called by its scheduler's name and its number") {
    const auto job = [](const Variables& variables) {
      const Environment environment(variables);
      return fsdp::scheduler_job() + "/" + fsdp::scheduler_node();
    };
    CHECK(job({}) == "/");
    CHECK(job({{"SLURM_JOB_ID", "42"}, {"SLURMD_NODENAME", "n1"}}) == "Slurm job 42/n1");
    CHECK(job({{"PBS_JOBID", "7.head"}, {"SLURM_JOB_ID", ""}}) == "PBS job 7.head/");
  }

  TEST_CASE("a job's size is put into the words of each scheduler") {
    CHECK(fsdp::scheduler_requests({.nodes = 2, .ranks_per_node = 3, .memory_gib_per_node = 5}) ==
          "# Slurm:  --nodes=2 --ntasks-per-node=3 --mem=5G\n# PBS:    -l select=2:mpiprocs=3:mem=5gb\n");
    CHECK(fsdp::scheduler_requests({.nodes = 1, .ranks_per_node = 4, .gpus_per_node = 4, .memory_gib_per_node = 9}) ==
          "# Slurm:  --nodes=1 --ntasks-per-node=4 --gres=gpu:4 --mem=9G\n"
          "# PBS:    -l select=1:mpiprocs=4:ngpus=4:mem=9gb\n");
  }

  TEST_CASE("a child that is no rank does without the variables of launchers") {
    for (const auto& expected : kSeveral) {
      auto variables = expected.variables;
      std::erase_if(variables, [](const auto& variable) { return fsdp::belongs_to_launcher(variable.first); });
      CAPTURE(text_of(variables));
      const Environment environment(variables);
      CHECK(!fsdp::several_started().has_value());
      CHECK(!fsdp::launched_by_mpi());
    }
    CHECK(fsdp::belongs_to_launcher("PMI_FD=5"));
    CHECK(!fsdp::belongs_to_launcher("PATH=/PMI_FD"));
    CHECK(!fsdp::belongs_to_launcher("SLURMD_NODENAME=n1"));
  }

  TEST_CASE("the first process of a host is known by its number there") {
    const auto place = [](const Variables& variables) {
      const Environment environment(variables);
      return std::pair(fsdp::first_of_its_host(), fsdp::ranks_on_this_host());
    };
    CHECK(place({}) == std::pair(true, 0));
    CHECK(place({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}, {"SLURM_LOCALID", "1"}}) == std::pair(true, 1));
    CHECK(place({{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}) == std::pair(false, 2));
    CHECK(place({{"SLURM_LOCALID", "1"}}) == std::pair(false, 0));
  }
}
