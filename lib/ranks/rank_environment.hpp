#pragma once
// What starts and ends a job's ranks, behind an interface free of MPI: a program that needs MPI only under a launcher
// loads it then (mpi_plugin.hpp).
#include <chrono>
#include <memory>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct MpiOptions {
  std::chrono::milliseconds init_timeout = std::chrono::seconds(300);
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(600);
};

/// The ranks of the job for as long as it lives. Only one may exist.
///
/// A rank that fails must not end it in the ordinary way (the others would wait for it for ever): it calls abort_job()
/// instead.
class RankEnvironment {
 public:
  virtual ~RankEnvironment() = default;
  /// All ranks. Must not outlive this object.
  virtual std::unique_ptr<ProcessGroup> world() = 0;
  /// Asks whether all ranks call this within `patience`: true on all when every one failed with an error of its own (a
  /// wrong option, say), so that the job can be ended properly; false when the others are still at work.
  virtual bool everyone_failed(std::chrono::milliseconds patience) = 0;
  /// What the process will return; used when the library's own ending hangs and has to be left.
  virtual void set_exit_code(int exit_code) = 0;
  /// Ends all ranks of the job with `exit_code`; does not return.
  virtual void abort_job(int exit_code) = 0;
};

}  // namespace fsdp
