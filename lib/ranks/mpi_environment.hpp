#pragma once
// MPI's life in a program, and MPI ranks as a ProcessGroup.
#include <chrono>
#include <memory>
#include <string>

#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// Initialises MPI for as long as it lives; the destructor finalises only when no exception is in flight.
class MpiEnvironment final : public RankEnvironment {
 public:
  /// \throws RuntimeFailure when the scheduler started more tasks than MPI knows of (a wrong --mpi), naming the cure,
  ///         or when a rank does not arrive within init_timeout, naming it
  explicit MpiEnvironment(const MpiOptions& options);
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;
  ~MpiEnvironment() override;

  /// MPI_COMM_WORLD as a group (a duplicate of it).
  std::unique_ptr<ProcessGroup> world() override;
  bool everyone_failed(std::chrono::milliseconds patience) override;
  void set_exit_code(int exit_code) override { exit_code_ = exit_code; }
  void abort_job(int exit_code) override { abort(exit_code); }

  [[noreturn]] static void abort(int exit_code);

  /// "MPICH 5.0.2" and the like.
  static std::string library_version();

 private:
  MpiOptions options_;
  int exit_code_ = 0;
  std::unique_ptr<ProcessGroup> failure_group_;  ///< apart from all others: its messages cannot meet a collective's
};

}  // namespace fsdp
