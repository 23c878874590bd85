#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <signal.h>

/// Programs that are tested inside this one block signals before main() (lib/base/process/signal_thread.hpp); Ctrl-C is
/// to end the tests.
static const int signals_reach_this_program = [] {
  sigset_t none;
  ::sigemptyset(&none);
  return ::sigprocmask(SIG_SETMASK, &none, nullptr);
}();
