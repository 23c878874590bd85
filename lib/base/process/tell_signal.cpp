#include "lib/base/process/tell_signal.hpp"

#include <signal.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace fsdp {
namespace {

// Global state is unavoidable here, because a signal handler takes no user argument.
std::atomic<int> times_asked{0};
static_assert(std::atomic<int>::is_always_lock_free);  // required in a signal handler

// Objects of several thread ranks end in any order.
std::mutex objects_mutex;
int num_objects = 0;

extern "C" void on_tell_signal(int) { times_asked.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

TellSignal::TellSignal() : answered_(times_asked) {
  const std::lock_guard lock(objects_mutex);
  if (num_objects++ > 0) return;
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_tell_signal;
  ::sigaction(SIGQUIT, &action, nullptr);
}

TellSignal::~TellSignal() {
  const std::lock_guard lock(objects_mutex);
  if (--num_objects == 0) ::signal(SIGQUIT, SIG_DFL);
}

bool TellSignal::asked() {
  const int now = times_asked;
  return std::exchange(answered_, now) != now;
}

}  // namespace fsdp
