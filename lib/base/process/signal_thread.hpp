#pragma once
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace fsdp {

/// During its lifetime, handlers of signals run on a thread of their own, those of libraries too, so the stack of a
/// thread that computes stays as it is: generated code, such as oneDNN's, uses the stack pointer as a workspace, and
/// the kernel writes a handler's frame below it. Make it the first object in main(). A program that does so has
/// asynchronous signals blocked before any library is initialised; all threads inherit that, and the thread of this
/// object alone takes signals. Dispositions stay: what is ignored, stops (Ctrl-Z), or ends the process does so as
/// before. Signals of a thread's own doing (SIGSEGV, SIGABRT, SIGPIPE, ...) go to that thread. If the process may have
/// no thread, signals are as without this object. A child made by fork() has the mask that this process was started
/// with; for posix_spawn() there is mask_at_start().
class SignalThread {
 public:
  SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;
  ~SignalThread();

  /// The signals that were blocked when the process was started.
  static const sigset_t& mask_at_start();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace fsdp
