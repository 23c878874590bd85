// Measures in a child process, which may run out of memory without harm to this process.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/files/descriptor.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/base/text/json_text.hpp"

namespace fsdp::detail {
namespace {

constexpr std::chrono::hours kLongestTrial{1};
constexpr std::chrono::milliseconds kPulse{250};  // how often the other ranks hear from this one

struct Pipe {
  Descriptor read, write;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError(fmt::format("no pipe: {}", std::strerror(errno)));
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

/// A child process; killed on destruction unless it was waited for.
class Process {
 public:
  explicit Process(pid_t pid) : pid_(pid) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    kill();
    wait();
  }
  void kill() const {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  /// \return the status of waitpid()
  int wait() {
    int status = 0;
    while (pid_ > 0 && ::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_;
};

/// Returns this process's environment without the launcher's variables, because the child is not a rank of the job.
std::vector<std::string> child_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!belongs_to_launcher(*entry)) kept.emplace_back(*entry);
  }
  return kept;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

struct Ended {
  int status = 0;
  bool too_long = false;
  std::string out, err;
};

Ended run_child(std::vector<std::string> command, const std::function<void()>& pulse) {
  Pipe out, err;
  auto environment = child_environment();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.write.get(), STDERR_FILENO);
  pid_t pid = 0;
  const auto arguments = pointers(command);
  const auto variables = pointers(environment);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &SignalThread::mask_at_start());
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed =
      ::posix_spawn(&pid, command.front().c_str(), &actions, &attributes, arguments.data(), variables.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw IoError(fmt::format("{}: cannot be started: {}", command.front(), std::strerror(failed)));
  Process process(pid);
  out.write.reset();
  err.write.reset();
  Ended ended;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto next_pulse = start + kPulse;
  std::array<pollfd, 2> ends{{{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (::poll(ends.data(), ends.size(), static_cast<int>(kPulse.count())) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      std::array<char, 4096> piece{};
      const auto n = ::read(ends[i].fd, piece.data(), piece.size());
      if (n > 0) {
        (i == 0 ? ended.out : ended.err).append(piece.data(), static_cast<std::size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        ends[i].fd = -1;
      }
    }
    if (Clock::now() >= next_pulse) {
      pulse();
      next_pulse = Clock::now() + kPulse;
    }
    if (Clock::now() - start > kLongestTrial) {
      ended.too_long = true;
      process.kill();
      break;
    }
  }
  ended.status = process.wait();
  return ended;
}

/// True when a trial's last message says that memory ran out: messages of PyTorch's allocator, of CUDA libraries, and
/// of oneDNN when it gets no pages for its code.
bool wanted_more_memory(const std::string& message) {
  constexpr std::array kWords{"out of memory",
                              "CUBLAS_STATUS_ALLOC_FAILED",
                              "CUBLAS_STATUS_NOT_INITIALIZED",
                              "CUDNN_STATUS_ALLOC_FAILED",
                              "DEVICE_ALLOCATION_FAILED",
                              "Cuda failure 2",
                              "could not create a primitive"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](const char* words) { return message.find(words) != std::string::npos; });
}

}  // namespace

std::optional<MemoryMeasurement> measure_in_child(const MemprobeOptions& options, const Combination& c,
                                                  std::int64_t batch_size, std::int64_t margin_bytes,
                                                  const std::function<void()>& pulse) {
  auto command = options.trial_command;
  const std::vector<std::string> last_words{"--measure",
                                            "--alone",
                                            "--no-search",
                                            "--json",
                                            "--quiet",
                                            "--trial",
                                            fmt::format("--sharding={}", to_string(c.sharding)),
                                            "--activation-checkpointing=" + c.checkpointing(),
                                            fmt::format("--precision={}", float_type_name(c.precision)),
                                            fmt::format("--ranks={}", c.ranks),
                                            fmt::format("--ranks-per-node={}", c.ranks_per_node),
                                            fmt::format("--rank={}", options.rank),
                                            fmt::format("--margin={}", margin_bytes),
                                            fmt::format("--batch-size={}", batch_size)};
  command.insert(command.end(), last_words.begin(), last_words.end());
  const auto ended = run_child(command, pulse);
  if (ended.too_long) {
    throw RuntimeFailure(
        fmt::format("the measurement of batch size {} took more than {} h; a smaller --max-batch, "
                    "--seq-len or model takes less",
                    batch_size, kLongestTrial.count()));
  }
  if (WIFSIGNALED(ended.status)) {
    const int number = WTERMSIG(ended.status);
    if (number == SIGKILL || number == SIGBUS) return std::nullopt;  // the kernel ended it because memory ran out
    throw RuntimeFailure(fmt::format("the measurement of batch size {} was ended by signal {} ({})", batch_size, number,
                                     ::strsignal(number)));
  }
  const int code = WEXITSTATUS(ended.status);
  if (code == static_cast<int>(ExitCode::failed) && wanted_more_memory(ended.err)) return std::nullopt;
  const auto report = parse_json_or_discard(ended.out, "the report of a measurement");
  if (report.is_discarded() || !report.contains("measured")) {
    throw RuntimeFailure(fmt::format("the measurement of batch size {} ended with code {}: {}", batch_size, code,
                                     ended.err.empty() ? "it said nothing" : ended.err));
  }
  const auto& m = report["measured"];
  MemoryMeasurement measured;
  measured.peak_bytes = m.value("peak_bytes", std::int64_t{0});
  measured.reserved_peak_bytes = m.value("reserved_peak_bytes", std::int64_t{0});
  measured.total_bytes = m.value("total_bytes", std::int64_t{0});
  measured.alloc_retries = m.value("alloc_retries", std::int64_t{0});
  measured.ooms = m.value("ooms", std::int64_t{0});
  measured.rss_bytes = m.value("peak_rss_bytes", std::int64_t{0});
  measured.step_seconds = m.value("step_seconds", 0.0);
  return measured;
}

}  // namespace fsdp::detail
