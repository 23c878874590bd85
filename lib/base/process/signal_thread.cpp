#include "lib/base/process/signal_thread.hpp"

#include <pthread.h>

#include <system_error>

namespace fsdp {
namespace {

/// All signals but those of a thread's own doing: its faults, its writes, and its access to a terminal that another job
/// has (read() fails instead of stopping the job where SIGTTIN is blocked).
sigset_t asynchronous_signals() {
  sigset_t signals;
  ::sigfillset(&signals);
  for (const int number :
       {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPIPE, SIGXFSZ, SIGTTIN, SIGTTOU})
    ::sigdelset(&signals, number);
  return signals;
}

// Global state is unavoidable here: it is set before main(), and handlers of fork() take no user argument.
sigset_t first_mask;

// Before the initialisers of libraries, which may start threads.
void block_signals() {
  const auto signals = asynchronous_signals();
  ::sigprocmask(SIG_BLOCK, &signals, &first_mask);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const block_signals_early)() = block_signals;

void restore_mask() { ::pthread_sigmask(SIG_SETMASK, &first_mask, nullptr); }

}  // namespace

SignalThread::SignalThread() {
  static const int restores_in_children = ::pthread_atfork(nullptr, nullptr, restore_mask);
  (void)restores_in_children;
  const auto signals = asynchronous_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "signals");
      restore_mask();
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return done_; });
    });
  } catch (const std::system_error&) {
    restore_mask();
  }
}

SignalThread::~SignalThread() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  restore_mask();
}

const sigset_t& SignalThread::mask_at_start() { return first_mask; }

}  // namespace fsdp
