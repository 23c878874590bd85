#include "lib/mpi/rank_environment.hpp"

#include <cstdlib>

namespace fsdp {

bool launched_by_mpi() {
  for (const char* name : {"PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK",
                           "MPI_LOCALRANKID", "SLURM_STEP_NUM_TASKS"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::string launcher_rank() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "PALS_RANKID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "";
}

}  // namespace fsdp
