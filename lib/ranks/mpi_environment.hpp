#pragma once
// Initialisation and finalisation of MPI, and its world as a ProcessGroup.
#include <chrono>
#include <memory>
#include <string>

#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// The constructor initialises MPI; the destructor finalises it unless an exception is in flight.
class MpiEnvironment final : public RankEnvironment {
 public:
  /// \throws Error of bad input when the launcher started more processes than MPI has ranks (a wrong --mpi, torchrun),
  ///         with the cure; RuntimeFailure when a rank does not arrive within init_timeout, naming the rank
  explicit MpiEnvironment(const MpiOptions& options);
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment() override;

  /// A duplicate of MPI_COMM_WORLD as a group.
  std::unique_ptr<ProcessGroup> world() override;
  bool everyone_failed(std::chrono::milliseconds patience) override;
  void set_exit(int exit_code, std::chrono::milliseconds patience) override {
    exit_code_ = exit_code;
    exit_patience_ = patience;
  }
  void abort_job(int exit_code) override { abort(exit_code); }

  [[noreturn]] static void abort(int exit_code);

  /// Name and version of the MPI library, such as "MPICH 5.0.2".
  static std::string library_version();

 private:
  MpiOptions options_;
  int exit_code_ = 0;
  std::chrono::milliseconds exit_patience_ = kExitPatience;
  std::unique_ptr<ProcessGroup> failure_group_;  ///< own communicator, so that its messages cannot match a collective's
};

}  // namespace fsdp
