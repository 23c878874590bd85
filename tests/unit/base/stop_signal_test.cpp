#include "lib/base/process/stop_signal.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "lib/base/process/signal_thread.hpp"

using namespace fsdp;

/// In the background of a script SIGINT is ignored, and stays so. doctest installs a handler of its own later.
const bool is_ignored = [] {
  struct sigaction action {};
  ::sigaction(SIGINT, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}();

TEST_SUITE("base/stop_signal") {
  TEST_CASE("a second Ctrl-C ends the process with the code that docs/exit-codes.md has for it") {
    const auto code_after = [](int times, bool on_its_own_thread) {
      const auto child = ::fork();
      if (child == 0) {
        std::optional<SignalThread> signals;
        if (on_its_own_thread) signals.emplace();
        const StopSignal stop;
        for (int i = 0; i < times; ++i) {
          ::kill(::getpid(), SIGINT);
          const auto waits = [&] { return !is_ignored && (i == 1 || stop.received() == 0); };
          for (int patience = 0; waits() && patience < 100'000; ++patience) ::usleep(200);
        }
        ::_exit(stop.received());
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      return WEXITSTATUS(status);
    };
    for (const bool on_its_own_thread : {false, true}) {
      CHECK(code_after(0, on_its_own_thread) == 0);
      CHECK(code_after(1, on_its_own_thread) == (is_ignored ? 0 : SIGINT));
      CHECK(code_after(2, on_its_own_thread) == (is_ignored ? 0 : 130));
    }
  }
}
