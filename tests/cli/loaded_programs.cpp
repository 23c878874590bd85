// Starts the programs that use LibTorch by fork() from a process that has it loaded: loading takes 0.2 s of a
// processor, more than most runs of a test need. Standard input is a listening socket; loaded_program.cpp calls there
// and hands over its files. FSDP_LOADED_TOO names a further library to load. What a program can see is as after exec():
// arguments, environment, folder, files, signals.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "lib/ranks/mpi_plugin.hpp"

// The programs' main(), which CMakeLists.txt renames.
extern "C" {
int fsdp_bf16check_main(int argc, char** argv);
int fsdp_eval_main(int argc, char** argv);
int fsdp_finetune_main(int argc, char** argv);
int fsdp_memprobe_main(int argc, char** argv);
[[gnu::weak]] void __gcov_dump();  // where coverage is measured
}

/// MPI calls it without end while ranks wait for one another to start and to end, which took a third of the processor
/// time of a short run. The ranks of tests share two cores: they sleep instead.
extern "C" int sched_yield() noexcept {
  constexpr timespec kMoment{0, 50'000};
  return ::nanosleep(&kMoment, nullptr);
}

namespace {

struct Caller {
  int connection = -1;
  pid_t pid = 0;
  std::vector<int> numbers, files;  ///< its open files: their numbers there and here
};

/// Accepts a call. \return connection -1 when the caller is gone
Caller accept_call() {
  Caller caller;
  caller.connection = ::accept4(STDIN_FILENO, nullptr, nullptr, SOCK_CLOEXEC);
  std::array<int, 64> numbers{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(numbers))> control{};
  iovec data{numbers.data(), sizeof(numbers)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ucred peer{};
  socklen_t size = sizeof(peer);
  const auto received = ::recvmsg(caller.connection, &message, 0);
  const auto* header = CMSG_FIRSTHDR(&message);
  if (received <= 0 || header == nullptr ||
      ::getsockopt(caller.connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    ::close(caller.connection);
    return {};
  }
  caller.pid = peer.pid;
  caller.numbers.assign(numbers.begin(), numbers.begin() + received / static_cast<ssize_t>(sizeof(int)));
  const auto* files = reinterpret_cast<const int*>(CMSG_DATA(header));
  caller.files.assign(files, files + caller.numbers.size());
  return caller;
}

/// Returns the words of /proc/PID/NAME, each of which ends with a zero.
std::vector<std::string> words_of(pid_t pid, const char* name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

/// Becomes the caller's program and ends with its exit code.
[[noreturn]] void become_program(const Caller& caller, const sigset_t& signals) {
  constexpr int kAbove = 512;  // numbers of files of callers are below
  std::vector<int> moved;
  for (const int file : caller.files) moved.push_back(::fcntl(file, F_DUPFD, kAbove));
  ::close_range(0, kAbove - 1, 0);
  for (std::size_t i = 0; i < moved.size(); ++i) ::dup2(moved[i], caller.numbers[i]);
  ::close_range(kAbove, ~0U, 0);

  ::clearenv();
  static auto variables = words_of(caller.pid, "environ");
  for (auto& variable : variables) {
    if (!variable.starts_with("FSDP_LOADED_PROGRAMS=")) ::putenv(variable.data());
  }
  static auto arguments = words_of(caller.pid, "cmdline");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const auto folder = "/proc/" + std::to_string(caller.pid) + "/cwd";
  cpu_set_t processors;
  if (arguments.empty() || ::chdir(folder.c_str()) != 0 ||
      ::sched_getaffinity(caller.pid, sizeof(processors), &processors) != 0 ||
      ::sched_setaffinity(0, sizeof(processors), &processors) != 0)
    std::_Exit(126);
  ::setsid();
  // As torch_main.cpp has it: no destructors of shared libraries.
  ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        if (__gcov_dump != nullptr) __gcov_dump();
        ::_exit(code);
      },
      nullptr);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  const auto program = std::filesystem::path(arguments[0]).filename();
  const auto main = program == "fsdp-eval"       ? fsdp_eval_main
                    : program == "fsdp-memprobe" ? fsdp_memprobe_main
                    : program == "fsdp-finetune" ? fsdp_finetune_main
                                                 : fsdp_bf16check_main;
  std::exit(main(static_cast<int>(arguments.size()), argv.data()));
}

/// Tells callers how their programs ended.
void report_ends(std::map<pid_t, int>& connections) {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found = connections.find(pid);
    ::send(found->second, &status, sizeof(status), MSG_NOSIGNAL);
    ::close(found->second);
    connections.erase(found);
  }
}

}  // namespace

int main() {
  const auto parent = ::getppid();
  sigset_t ends, signals;
  ::sigemptyset(&ends);
  ::sigprocmask(SIG_SETMASK, &ends,
                nullptr);  // the programs' objects block signals (lib/base/process/signal_thread.hpp)
  ::sigaddset(&ends, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &ends, &signals);
  const int ended = ::signalfd(-1, &ends, SFD_NONBLOCK);
  const auto* const further = std::getenv("FSDP_LOADED_TOO");
  if (further != nullptr && ::dlopen(further, RTLD_NOW | RTLD_LOCAL) == nullptr)
    std::fprintf(stderr, "loaded_programs: %s\n", ::dlerror());
  (void)fsdp::loaded_mpi_version();  // loads MPI
  std::map<pid_t, int> connections;  // by program
  while (::getppid() == parent) {
    std::vector<pollfd> waited{{STDIN_FILENO, POLLIN, 0}, {ended, POLLIN, 0}};
    std::vector<pid_t> programs;
    for (const auto& [program, connection] : connections) {
      waited.push_back({connection, POLLIN, 0});
      programs.push_back(program);
    }
    ::poll(waited.data(), waited.size(), 1000);
    for (std::size_t i = 0; i < programs.size(); ++i) {
      if (waited[i + 2].revents != 0) ::kill(programs[i], SIGKILL);  // the caller was killed
    }
    if (waited[1].revents != 0) {
      signalfd_siginfo which{};
      while (::read(ended, &which, sizeof(which)) > 0) continue;
      report_ends(connections);
    }
    if (waited[0].revents == 0) continue;
    const auto caller = accept_call();
    if (caller.connection < 0) continue;
    const auto program = ::fork();
    if (program == 0) become_program(caller, signals);
    ::send(caller.connection, &program, sizeof(program), MSG_NOSIGNAL);
    connections[program] = caller.connection;
    for (const int file : caller.files) ::close(file);
  }
  for (const auto& [program, connection] : connections) ::kill(program, SIGKILL);
}
