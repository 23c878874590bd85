#pragma once
namespace fsdp {

/// During its lifetime, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU and SIGHUP only set a flag; a second SIGINT ends the
/// process at once. SIGHUP and SIGINT stay ignored where the program was started so, as by nohup and in the background
/// of a script. SIGPIPE is ignored, so that a log whose reader has ended (`| head`, a dead `tee`) does not end the run.
/// Objects that exist at the same time share the flag. The handlers run on any thread unless there is a SignalThread.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();
  /// The signal received, 0 for none.
  int received() const;
};

}  // namespace fsdp
