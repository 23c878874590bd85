// hide-hydra-banner [PID]: stdin to stdout as it comes, without what hydra prints about a rank that a signal ended
// (lib/ranks/hydra_banner.hpp). build/bin/mpiexec puts it behind hydra, whose process is PID.
// Exit codes: 0 all was written, 1 stdout failed, 3 all was written but what hydra printed.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "lib/ranks/hydra_banner.hpp"

namespace {

bool write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // stdout is another's, who may have made it so
      pollfd out{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&out, 1, -1);
    } else if (errno != EINTR) {
      std::cerr << "mpiexec: stdout: " << std::strerror(errno) << '\n';
      return false;
    }
  }
  return true;
}

/// Waits for input. \return false when none will come: hydra is gone, and what else holds the pipe is silent.
bool wait_for_input(pid_t hydra) {
  constexpr int kPulseMs = 500;
  pollfd in{STDIN_FILENO, POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&in, 1, hydra > 0 ? kPulseMs : -1)) <= 0) {
    if (ready == 0 && ::kill(hydra, 0) != 0 && errno == ESRCH) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // The end of its input ends it: signals that come to all of a job are for hydra, which prints after them.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(number, SIG_IGN);
  const auto hydra = static_cast<pid_t>(argc > 1 ? std::atoi(argv[1]) : 0);
  fsdp::HydraBanner banner;
  std::array<char, 1 << 16> buffer;
  while (wait_for_input(hydra)) {
    const auto n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (!write_all(banner.pass({buffer.data(), static_cast<std::size_t>(n)}))) return 1;
  }
  if (!write_all(banner.finish())) return 1;
  return banner.dropped() ? 3 : 0;
}
