#pragma once
// Requests to stop a run: signals and the end of the job's time.
#include <signal.h>

#include <array>
#include <chrono>
#include <optional>

namespace fsdp {

/// During its lifetime, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU and SIGHUP (unless it was ignored, as by nohup) only
/// set a flag; a second SIGINT ends the process at once. SIGPIPE is ignored, so that a log whose reader has ended (`|
/// head`, a dead `tee`) does not end the run. Nested objects share the flag.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();
  /// The signal received, 0 for none.
  int received() const;

 private:
  std::array<struct sigaction, 7> previous_{};
};

/// The time at which the scheduler will end this job (SLURM_JOB_END_TIME); nullopt when unknown.
std::optional<std::chrono::system_clock::time_point> scheduler_end_time();

}  // namespace fsdp
