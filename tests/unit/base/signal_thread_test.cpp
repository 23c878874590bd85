#include "lib/base/process/signal_thread.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <thread>
#include <vector>

using namespace fsdp;

namespace {

std::vector<int> asynchronous() {
  std::vector<int> numbers{SIGHUP,  SIGINT,  SIGQUIT, SIGUSR1, SIGUSR2,   SIGALRM, SIGTERM,  SIGSTKFLT, SIGCHLD,
                           SIGCONT, SIGTSTP, SIGURG,  SIGXCPU, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO,     SIGPWR};
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) numbers.push_back(number);
  return numbers;
}

/// A process of this test and its child share it.
struct Shared {
  std::atomic<int> ready, handled, strange_thread, done, hits;
  std::array<std::atomic<pid_t>, 2> threads;  ///< that compute
};
static_assert(std::atomic<int>::is_always_lock_free);  // between processes

Shared* shared = nullptr;  // of handlers, which take no argument

extern "C" void note(int) {
  if (shared->threads[0] == ::gettid() || shared->threads[1] == ::gettid()) ++shared->strange_thread;
  ++shared->handled;
}

/// As generated code does that uses the stack pointer as a workspace: what lies below it is to stay as it was written.
[[gnu::noinline, gnu::no_sanitize("address", "thread")]] void compute(std::atomic<int>& ready,
                                                                      const std::atomic<int>& done,
                                                                      std::atomic<int>& hits) {
  constexpr std::ptrdiff_t kNear = 1024, kFar = 8192;  // nearer to the stack pointer are calls of this function
  auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  asm volatile("" : "+r"(here));  // what is below the frame is no object of C++
  auto* const workspace = reinterpret_cast<volatile std::uint64_t*>(here - kFar);
  constexpr std::ptrdiff_t kWords = (kFar - kNear) / 8;
  for (std::ptrdiff_t i = 0; i < kWords; ++i) workspace[i] = 0x5eed0000U + static_cast<std::uint64_t>(i);
  ++ready;
  while (done == 0) {
    for (std::ptrdiff_t i = 0; i < kWords; ++i) {
      const auto wanted = 0x5eed0000U + static_cast<std::uint64_t>(i);
      if (workspace[i] == wanted) continue;
      workspace[i] = wanted;
      ++hits;
    }
  }
}

/// Runs `body` in a process group of its own, and `meanwhile` with its id. \return the status of waitpid()
int in_a_child(const std::function<int()>& body, const std::function<void(pid_t)>& meanwhile) {
  auto* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  shared = new (memory) Shared{};
  const auto child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);                                                    // a group with a parent outside: stops reach it
    for (const int number : asynchronous()) ::signal(number, SIG_DFL);  // doctest has handlers
    ::_exit(body());
  }
  meanwhile(child);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

void wait_until(pid_t child, const std::function<bool()>& condition) {
  while (!condition() && !has_ended(child)) ::usleep(200);
}

}  // namespace

TEST_SUITE("base/signal_thread") {
  TEST_CASE("no handler runs on a thread that computes, whichever code installed it and when") {
    for (const bool installed_before : {true, false}) {
      CAPTURE(installed_before);
      const auto body = [&] {
        const auto install = [] {
          for (const int number : asynchronous()) ::signal(number, note);
        };
        if (installed_before) install();
        const SignalThread signals;
        if (!installed_before) install();
        std::thread other([] {
          shared->threads[1] = ::gettid();
          compute(shared->ready, shared->done, shared->hits);
        });
        shared->threads[0] = ::gettid();
        compute(shared->ready, shared->done, shared->hits);
        other.join();
        return 7;
      };
      const auto status = in_a_child(body, [](pid_t child) {
        wait_until(child, [] { return shared->ready == 2; });
        for (const int number : asynchronous()) {
          for (int i = 0; i < 5; ++i) {
            const int before = shared->handled;
            ::kill(child, number);
            wait_until(child, [&] { return shared->handled != before; });
          }
        }
        shared->done = 1;
      });
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 7);
      CHECK(shared->handled == 5 * static_cast<int>(asynchronous().size()));
      CHECK(shared->strange_thread == 0);
#if !defined(__SANITIZE_THREAD__)  // which calls functions of its own in between
      CHECK(shared->hits == 0);
#endif
    }
  }

  TEST_CASE("signals without a handler end the process, are ignored, and stop and continue it") {
    const auto body = [] {
      ::signal(SIGHUP, SIG_IGN);
      const SignalThread signals;
      shared->ready = 1;
      ::pause();
      return 7;
    };
    for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGALRM, SIGRTMIN}) {
      const auto status = in_a_child(body, [&](pid_t child) {
        wait_until(child, [] { return shared->ready == 1; });
        ::kill(child, SIGHUP);
        int stopped = 0;
        ::kill(child, SIGTSTP);
        CHECK(::waitpid(child, &stopped, WUNTRACED) == child);
        CHECK(WIFSTOPPED(stopped));
        CHECK(WSTOPSIG(stopped) == SIGTSTP);
        ::kill(child, SIGCONT);
        CHECK(::waitpid(child, &stopped, WCONTINUED) == child);
        CHECK(WIFCONTINUED(stopped));
        ::kill(child, number);
      });
      CHECK(WIFSIGNALED(status));
      CHECK(WTERMSIG(status) == number);
    }
  }

  TEST_CASE("a child has the mask that the process was started with, and so has this thread afterwards") {
    const auto blocks = [](int number) {
      sigset_t mask;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      return ::sigismember(&mask, number) == 1;
    };
    const auto status = in_a_child(
        [&] {
          if (blocks(SIGTERM)) return 1;
          {
            const SignalThread signals;
            if (!blocks(SIGTERM) || blocks(SIGSEGV) || blocks(SIGPIPE) || blocks(SIGTTIN)) return 2;
            if (::sigismember(&SignalThread::mask_at_start(), SIGTERM) == 1) return 3;
            const auto child = ::fork();
            if (child == 0) ::_exit(blocks(SIGTERM) ? 1 : 0);
            int of_child = 0;
            if (::waitpid(child, &of_child, 0) != child || of_child != 0) return 4;
          }
          return blocks(SIGTERM) ? 5 : 7;
        },
        [](pid_t) {});
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 7);
  }
}
