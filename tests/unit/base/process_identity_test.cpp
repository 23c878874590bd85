#include "lib/base/process/process_identity.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

using fsdp::ProcessIdentity;

namespace {

/// Exit code of `body` in a process of its own.
template <typename Body>
int in_a_process(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

}  // namespace

TEST_SUITE("base/process identity") {
  TEST_CASE("a process that /proc does not show is not taken for gone while it lives") {
    const pid_t sleeper = ::fork();
    if (sleeper == 0) {
      ::pause();
      ::_exit(0);
    }
    auto identity = ProcessIdentity::own();
    identity.pid = sleeper;
    constexpr int kNoNamespace = 77;
    const auto gone_where_hidden = [&] {
      const auto folder = "/proc/" + std::to_string(sleeper);
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr) != 0) {
        return kNoNamespace;
      }
      return identity.surely_gone() ? 1 : 0;
    };

    const int hidden = in_a_process(gone_where_hidden);
    ::kill(sleeper, SIGKILL);
    ::waitpid(sleeper, nullptr, 0);

    if (hidden == kNoNamespace) {
      MESSAGE("skipped: no mount namespace can be made here");
    } else {
      CHECK(hidden == 0);
    }
    CHECK(identity.surely_gone());
    CHECK_FALSE(ProcessIdentity::own().surely_gone());
  }
}
