#pragma once
// What is asked before and after MPI starts, because MPI's own words for it are riddles.
#include <string>

namespace fsdp::detail {

/// What this host lacks that MPI needs between ranks: /proc, and /dev/shm where ranks share the host. MPI_Init ends the
/// process for want of them ("Out of memory", "failed to get boot id"), so this is said before.
/// \return a sentence with the cure; "" when nothing is missing, or where another rank of this host says it
std::string host_problem();

/// Before MPI starts: MPICH ends a process whose PMI_FD is left over from another with a riddle; it is removed.
/// \return a sentence that says so; "" where there is nothing to forget
std::string forget_lost_launcher();

/// Before MPI starts: MPICH copies between the ranks of a host by their process ids, and where ranks have pid
/// namespaces of their own (containers) reads its own memory instead, without an error. Such copies are turned off
/// there.
void avoid_copies_by_pid();

/// For a rank that MPI sees alone. \param mpi  the library's name and version
/// \throws RuntimeFailure when the launcher started more: each would train alone
void refuse_lonely_rank(const std::string& mpi);

}  // namespace fsdp::detail
