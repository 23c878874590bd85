#pragma once
// Asking a run to stop: signals and the end of the job's time.
#include <signal.h>

#include <array>
#include <chrono>
#include <optional>

namespace fsdp {

/// While it lives, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU and SIGHUP (unless it was ignored, as nohup does) only
/// set a flag; a second SIGINT ends the process at once. SIGPIPE is ignored: a log that nobody reads any more (`|
/// head`, a dead `tee`) is no reason to lose work. One inside another shares its flag.
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

/// When the scheduler will end this job, where it says so (SLURM_JOB_END_TIME).
std::optional<std::chrono::system_clock::time_point> scheduler_end_time();

}  // namespace fsdp
