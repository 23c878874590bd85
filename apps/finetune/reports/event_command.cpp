#include "apps/finetune/reports/event_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/base/types/elapsed.hpp"

namespace fsdp::detail {
namespace {

constexpr std::size_t kMostOutput_bytes = 65536;
constexpr int kPoll_milliseconds = 20;
constexpr double kDeath_seconds = 2;

/// The reading end of a child's output; closed on scope exit.
class OutputPipe {
 public:
  OutputPipe() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0) {
      read_ = ends[0];
      write_ = ends[1];
    }
  }
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;
  ~OutputPipe() {
    close_write();
    if (read_ >= 0) ::close(read_);
  }
  bool is_open() const { return read_ >= 0; }
  int read_end() const { return read_; }
  int write_end() const { return write_; }
  void close_write() {
    if (write_ >= 0) ::close(write_);
    write_ = -1;
  }

 private:
  int read_ = -1, write_ = -1;
};

/// Logs output line by line, up to a limit.
class OutputLog {
 public:
  explicit OutputLog(const Logger& log) : log_(log) {}

  /// Takes what is in the pipe now.
  void read(int fd) {
    std::array<char, 4096> piece{};
    for (ssize_t n = 0; (n = ::read(fd, piece.data(), piece.size())) > 0;) {
      const std::string_view text(piece.data(), static_cast<std::size_t>(n));
      for (const char c : text) take(c);
    }
  }
  void end_line() {
    if (line_.empty()) return;
    const auto text = "event     " + line_;
    log_.rank() == 0 ? log_.info(text) : log_.warning(text);  // other ranks log no information
    line_.clear();
  }

 private:
  void take(char c) {
    if (bytes_++ < kMostOutput_bytes) {
      c == '\n' ? end_line() : line_.push_back(c);
    } else if (bytes_ == kMostOutput_bytes + 1) {
      end_line();
      log_.warning(
          fmt::format("--on-event: the command prints more than {} bytes, the rest is not logged", kMostOutput_bytes));
    }
  }
  const Logger& log_;
  std::string line_;
  std::size_t bytes_ = 0;
};

/// The attributes and file actions of posix_spawn(), freed on scope exit.
class SpawnSettings {
 public:
  /// \param output  becomes standard output and error
  explicit SpawnSettings(int output) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    // Libraries open files without O_CLOEXEC; the launcher, for one, waits for the ends of those that it gave to a
    // rank.
    std::error_code error;
    for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
         entry.increment(error)) {
      const int fd = std::atoi(entry->path().filename().c_str());
      if (fd > STDERR_FILENO) ::posix_spawn_file_actions_addclose(&actions_, fd);
    }
    sigset_t ignored;  // by this process alone
    ::sigemptyset(&ignored);
    ::sigaddset(&ignored, SIGPIPE);
    ::sigaddset(&ignored, SIGXFSZ);
    ::posix_spawnattr_setsigdefault(&attributes_, &ignored);
    ::posix_spawnattr_setsigmask(&attributes_, &SignalThread::mask_at_start());
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// This process's environment without what would make the command a rank of the job; what the scheduler says of the job
/// stays, since the command may submit the next one.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto name = text.substr(0, text.find('='));
    bool is_replaced = belongs_to_launcher(text) && !text.starts_with("SLURM_") && !text.starts_with("PBS_");
    for (const auto& [own, value] : variables) is_replaced = is_replaced || name == own;
    if (!is_replaced) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

/// \return how the command failed; "" when it did not
std::string failure_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

/// \return how the command failed; "" when it did not
std::string run_command(const std::string& command, const std::vector<std::pair<std::string, std::string>>& variables,
                        std::chrono::milliseconds limit, const Logger& log) {
  OutputPipe pipe;
  if (!pipe.is_open()) return fmt::format("cannot be started: {}", std::strerror(errno));
  std::array<std::string, 3> words{"/bin/sh", "-c", command};
  std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  auto environment = environment_with(variables);
  std::vector<char*> entries;
  for (auto& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  pid_t pid = 0;
  // The blocking of the pipe is that of both processes: only the reading end may not block.
  ::fcntl(pipe.write_end(), F_SETFL, 0);
  {
    const SpawnSettings settings(pipe.write_end());
    const int error = ::posix_spawn(&pid, words[0].c_str(), settings.actions(), settings.attributes(), arguments.data(),
                                    entries.data());
    if (error != 0) return fmt::format("cannot be started: {}", std::strerror(error));
  }
  pipe.close_write();
  OutputLog output(log);
  const auto start = std::chrono::steady_clock::now();
  const double most = std::chrono::duration<double>(limit).count();
  pollfd end{pipe.read_end(), POLLIN, 0};
  int status = 0;
  std::string failure;
  for (;;) {
    const auto ended = ::waitpid(pid, &status, WNOHANG);
    output.read(pipe.read_end());
    if (ended == pid) {
      if (failure.empty()) failure = failure_of(status);
      break;
    }
    if (ended < 0 && errno != EINTR) break;  // SIGCHLD is ignored: how it ended is not known
    if (failure.empty() && seconds_since(start) > most) {
      ::kill(-pid, SIGKILL);
      failure = fmt::format("took more than {:g} s and was killed", most);
    }
    if (seconds_since(start) > most + kDeath_seconds)
      break;  // it hangs in the kernel, as on a file server that is gone
    if (::poll(&end, 1, kPoll_milliseconds) > 0 && (end.revents & POLLIN) == 0)
      ::usleep(kPoll_milliseconds * 1000);  // the command has closed its output and goes on
  }
  output.end_line();
  return failure;
}

}  // namespace

void run_event_command(const std::string& name, const std::string& command,
                       const std::vector<std::pair<std::string, std::string>>& variables,
                       std::chrono::milliseconds limit, const Logger& log) {
  const auto start = std::chrono::steady_clock::now();
  std::string failure;
  try {
    failure = run_command(command, variables, limit, log);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (!failure.empty()) {
    log.warning(fmt::format("--on-event: the command for '{}' {}; the job is as it was", name, failure));
  } else if (log.rank() == 0) {
    log.info(fmt::format("event     {}: the command of --on-event took {:.1f} s", name, seconds_since(start)));
  }
}

}  // namespace fsdp::detail
