#pragma once
// Asking a run to stop: signals and the end of the job's time.
#include <signal.h>

#include <array>
#include <chrono>
#include <optional>

namespace fsdp {

/// While it lives, SIGTERM, SIGINT and SIGUSR1 only set a flag; a second SIGINT ends the process at once. One inside
/// another shares its flag.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();
  /// The signal received, 0 for none.
  int received() const;

 private:
  std::array<struct sigaction, 3> previous_{};
};

/// When the scheduler will end this job, where it says so (SLURM_JOB_END_TIME).
std::optional<std::chrono::system_clock::time_point> scheduler_end_time();

}  // namespace fsdp
