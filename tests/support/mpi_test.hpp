#pragma once
// For tests under a real MPI launcher, with tests/support/mpi_main.cpp.
#include "lib/ranks/process_group.hpp"

namespace fsdp::test {

/// Returns the group of all ranks of the job.
ProcessGroup& mpi_world();

}  // namespace fsdp::test
