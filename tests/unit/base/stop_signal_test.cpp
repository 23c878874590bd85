#include "lib/base/stop_signal.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

using namespace fsdp;

/// In the background of a script SIGINT is ignored, and stays so. doctest installs a handler of its own later.
const bool is_ignored = [] {
  struct sigaction action {};
  ::sigaction(SIGINT, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}();

TEST_SUITE("base/stop_signal") {
  TEST_CASE("a second Ctrl-C ends the process with the code that docs/exit-codes.md has for it") {
    const auto code_after = [](int times) {
      const auto child = ::fork();
      if (child == 0) {
        const StopSignal stop;
        for (int i = 0; i < times; ++i) std::raise(SIGINT);
        ::_exit(stop.received());
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status));
      return WEXITSTATUS(status);
    };
    CHECK(code_after(0) == 0);
    CHECK(code_after(1) == (is_ignored ? 0 : SIGINT));
    CHECK(code_after(2) == (is_ignored ? 0 : 130));
  }
}
