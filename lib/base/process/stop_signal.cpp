#include "lib/base/process/stop_signal.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace fsdp {
namespace {

// Global state is unavoidable here, because a signal handler takes no user argument.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);  // required in a signal handler

constexpr std::array<int, 7> kSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP, SIGPIPE};

// Signals that the caller had ignored stay so: SIGHUP by nohup, SIGINT where a shell without job control starts a
// command in the background. LibTorch's libraries install handlers when they are loaded, which hides this; the function
// runs before their initialisers.
bool hangup_is_ignored = false, interrupt_is_ignored = false;
bool is_ignored_now(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}
void note_ignored() {
  hangup_is_ignored = is_ignored_now(SIGHUP);
  interrupt_is_ignored = is_ignored_now(SIGINT);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const note_ignored_early)() = note_ignored;

bool stays_ignored(int number) {
  return (number == SIGHUP && hangup_is_ignored) || (number == SIGINT && interrupt_is_ignored);
}

// Objects of several thread ranks end in any order.
std::mutex objects_mutex;
int num_objects = 0;

extern "C" void on_stop_signal(int number) {
  if (number == SIGINT && received_signal == SIGINT) ::_exit(130);
  received_signal = number;
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(objects_mutex);
  if (num_objects++ > 0) return;
  received_signal = 0;
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) {
    action.sa_handler = number == SIGPIPE || stays_ignored(number) ? SIG_IGN : on_stop_signal;
    ::sigaction(number, &action, nullptr);
  }
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(objects_mutex);
  if (--num_objects > 0) return;
  // Restore the default action: libraries' handlers are not wanted.
  for (const int number : kSignals) ::signal(number, stays_ignored(number) ? SIG_IGN : SIG_DFL);
}

int StopSignal::received() const { return received_signal; }

}  // namespace fsdp
