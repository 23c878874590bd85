#pragma once
// MPI's life in a program, and MPI ranks as a ProcessGroup.
#include <chrono>
#include <memory>
#include <string>

#include "lib/comm/process_group.hpp"

namespace fsdp {

struct MpiOptions {
  std::chrono::milliseconds init_timeout = std::chrono::seconds(300);
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(600);
};

/// True when the environment says that an MPI launcher (mpiexec, srun, PALS) started this process.
bool launched_by_mpi();

/// Initialises MPI for as long as it lives. Only one may exist.
///
/// A rank that fails must not call MPI_Finalize (the others would wait for it for ever): call abort() instead; the
/// destructor finalises only when no exception is in flight.
class MpiEnvironment {
 public:
  /// \throws RuntimeFailure when the scheduler started more tasks than MPI knows of (a wrong --mpi), naming the cure,
  ///         or when a rank does not arrive within init_timeout, naming it
  explicit MpiEnvironment(const MpiOptions& options);
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment();

  /// MPI_COMM_WORLD as a group (a duplicate of it). Must not outlive this object.
  std::unique_ptr<ProcessGroup> world();

  /// Asks whether all ranks call this within `patience`: true on all when every one failed with an error of its own (a
  /// wrong option, say), so that MPI can be ended properly; false when the others are still at work.
  bool everyone_failed(std::chrono::milliseconds patience);

  /// What the process will return; used when MPI_Finalize itself hangs and has to be left.
  void set_exit_code(int exit_code) { exit_code_ = exit_code; }

  /// Ends all ranks of the job with `exit_code`; does not return.
  [[noreturn]] static void abort(int exit_code);

  /// "MPICH 5.0.2" and the like.
  static std::string library_version();

 private:
  MpiOptions options_;
  int exit_code_ = 0;
  std::unique_ptr<ProcessGroup> failure_group_;  ///< apart from all others: its messages cannot meet a collective's
};

}  // namespace fsdp
