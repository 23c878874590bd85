// hide-hydra-banner [HYDRA [LAUNCHER]]: copies stdin to stdout as it arrives and drops the banner that hydra prints
// about a rank that was ended by a signal (lib/ranks/hydra_banner.hpp). build/bin/mpiexec pipes hydra's output through
// it. HYDRA is hydra's process. LAUNCHER is the process that starts both: if it ends first, because it was killed,
// hydra gets SIGTERM, so that the ranks save and end instead of going on alone.
// Exit codes: 0 all input was written, 1 writing to stdout failed, 3 all input but a banner was written.
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
      bytes.remove_prefix(n);
    } else if (errno == EAGAIN) {  // another process that shares stdout may have made it non-blocking
      pollfd out{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&out, 1, -1);
    } else if (errno != EINTR) {
      std::cerr << "mpiexec: stdout: " << std::strerror(errno) << '\n';
      return false;
    }
  }
  return true;
}

struct Job {
  pid_t hydra = 0, launcher = 0;

  /// Ends the ranks if the launcher is gone.
  void watch_launcher() {
    if (launcher == 0 || ::getppid() == launcher) return;
    launcher = 0;
    ::kill(hydra, SIGTERM);
  }
};

/// Waits for input. \return false when no input will come: hydra has ended, and other holders of the pipe are silent.
bool wait_for_input(Job& job) {
  constexpr int kPulseMs = 500;
  pollfd in{STDIN_FILENO, POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&in, 1, job.hydra > 0 ? kPulseMs : -1)) <= 0) {
    if (ready == 0 && ::kill(job.hydra, 0) != 0 && errno == ESRCH) return false;
    job.watch_launcher();
  }
  job.watch_launcher();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // This program ends at the end of its input. Signals to the whole job are meant for hydra, which still prints after
  // them.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(number, SIG_IGN);
  Job job;
  if (argc > 1) job.hydra = std::atoi(argv[1]);
  if (argc > 2) job.launcher = std::atoi(argv[2]);
  fsdp::HydraBanner banner;
  std::array<char, 1 << 16> buffer;
  while (wait_for_input(job)) {
    const auto n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (!write_all(banner.pass({buffer.data(), static_cast<std::size_t>(n)}))) return 1;
  }
  if (!write_all(banner.finish())) return 1;
  return banner.dropped() ? 3 : 0;
}
