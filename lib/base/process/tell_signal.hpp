#pragma once
namespace fsdp {

/// During its lifetime, SIGQUIT (Ctrl-\, kill -QUIT, scancel --signal=QUIT) asks the process to say what it does, and
/// does not end it. Objects that exist at the same time share the count. The handler runs on any thread unless there is
/// a SignalThread.
class TellSignal {
 public:
  TellSignal();
  TellSignal(const TellSignal&) = delete;
  TellSignal& operator=(const TellSignal&) = delete;
  ~TellSignal();
  /// True once for each time that it was asked since the call before, or since the object was made.
  bool asked();

 private:
  int answered_;
};

}  // namespace fsdp
