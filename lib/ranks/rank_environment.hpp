#pragma once
// Start and end of a job's ranks, behind an interface without MPI types, so that a program can load MPI at run time
// only when a launcher started it (mpi_plugin.hpp).
#include <chrono>
#include <memory>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct MpiOptions {
  std::chrono::milliseconds init_timeout = std::chrono::seconds(300);
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(600);
};

/// Longest stay in MPI_Finalize of ranks that come there together.
inline constexpr std::chrono::seconds kExitPatience{10};

/// Owns the connection to the other ranks of the job. Only one may exist.
///
/// A rank that fails must call abort_job() instead of destroying it, because the other ranks would wait for it for
/// ever.
class RankEnvironment {
 public:
  virtual ~RankEnvironment() = default;
  /// The group of all ranks. Must not outlive this object.
  virtual std::unique_ptr<ProcessGroup> world() = 0;
  /// Called by a rank that failed. True on every rank when all ranks call it within `patience`, which means that each
  /// failed by itself (a wrong option, for example) and the job can end normally; false when other ranks still work.
  virtual bool everyone_failed(std::chrono::milliseconds patience) = 0;
  /// Sets the exit code for the case that MPI_Finalize hangs, and the process must be ended after `patience`: longer
  /// than the other ranks may take to come there.
  virtual void set_exit(int exit_code, std::chrono::milliseconds patience) = 0;
  /// Ends all ranks of the job with `exit_code`. Does not return.
  virtual void abort_job(int exit_code) = 0;
};

}  // namespace fsdp
