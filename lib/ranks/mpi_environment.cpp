#include "lib/ranks/mpi_environment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/process/plugin.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/mpi_group.hpp"

namespace fsdp {
namespace {
/// The errno with which the allocation of a little shared memory fails; 0 when it succeeds.
int shared_memory_error() {
  constexpr off_t bytes = 1 << 20;
  const auto name = fmt::format("/fsdp-check-{}", ::getpid());
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno == EEXIST ? 0 : errno;
  const int error = ::posix_fallocate(fd, 0, bytes);
  ::close(fd);
  ::shm_unlink(name.c_str());
  return error;
}

/// Shared memory of MPICH 5.0 and its UCX on a host, as measured on 2 to 16 ranks: MPICH's own, without which it ends
/// with signal 7, and UCX's queues, for which UCX wants a reserve. Where the reserve is used up while ranks start, UCX
/// ends with signal 11.
constexpr std::int64_t kMpichBytesPerRank = 1'100'000, kUcxBytesPerRank = 4'500'000, kUcxReserveBytes = 17'000'000;

struct SharedMemory {
  std::int64_t size_bytes = std::numeric_limits<std::int64_t>::max();  ///< also where they are unknown
  std::int64_t free_bytes = std::numeric_limits<std::int64_t>::max();
};

/// Looks at /dev/shm. Ranks that came earlier may already have taken their part of what is free.
SharedMemory shared_memory() {
  struct statvfs found {};
  if (::statvfs("/dev/shm", &found) != 0) return {};
  const auto block = static_cast<std::int64_t>(found.f_frsize);
  return {.size_bytes = static_cast<std::int64_t>(found.f_blocks) * block,
          .free_bytes = static_cast<std::int64_t>(found.f_bavail) * block};
}

double to_mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Where /dev/shm is small (containers have 64 MiB), lets UCX take System V shared memory instead of it.
/// Call before MPI_Init.
void avoid_small_shared_memory() {
  constexpr int kManyRanks = 64;  // where no launcher says how many
  const int ranks = ranks_on_this_host();
  const auto wanted = kUcxReserveBytes + (ranks > 0 ? ranks : kManyRanks) * (kMpichBytesPerRank + kUcxBytesPerRank);
  constexpr int keep_what_the_user_set = 0;
  if (shared_memory().free_bytes < wanted) ::setenv("UCX_TLS", "^posix", keep_what_the_user_set);
}

std::string problem_of_this_host() {
  if (::access("/proc/self", F_OK) != 0) {
    return "this host has no /proc, which MPI needs to start: mount it (mount -t proc proc /proc; in a container, bind "
           "it)";
  }
  const int ranks = ranks_on_this_host();
  if (ranks == 1) return "";
  if (const auto size = shared_memory().size_bytes; size < ranks * kMpichBytesPerRank) {
    return fmt::format(
        "/dev/shm has {:.1f} MiB, and MPI needs {:.1f} MiB there between the {} ranks of this host: it may end with "
        "signal 7 or 11. Give it a size (docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory; mount "
        "-o remount,size=1g /dev/shm)",
        to_mib(size), to_mib(ranks * kMpichBytesPerRank), ranks);
  }
  if (const int error = shared_memory_error(); error != 0) {
    return fmt::format(
        "/dev/shm cannot be used ({}), and MPI needs it between the ranks of a host: mount it (mount -t "
        "tmpfs tmpfs /dev/shm; in a container, bind it or give it a size), or remove what fills it",
        std::strerror(error));
  }
  return "";
}

/// Checks that this host has what MPI needs between ranks: /proc, and /dev/shm if several ranks share the host. Without
/// them, MPI_Init ends the process with messages such as "Out of memory" or "failed to get boot id".
/// \return a sentence with the cure; "" when nothing is missing, or when another rank of this host reports it
std::string host_problem() {
  if (!launched_by_mpi()) return "";
  auto problem = problem_of_this_host();
  if (problem.empty() || first_of_its_host()) return problem;
  // The first rank's message must be printed before MPI_Init ends this rank and, with it, the job.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return "";
}

/// Removes a PMI_FD that another process left in the environment, with which MPICH would end this process. Call before
/// MPI_Init.
/// \return a sentence that says so; "" when there was nothing to remove
std::string forget_lost_launcher() {
  const char* text = std::getenv("PMI_FD");
  if (text == nullptr) return "";
  struct stat kind {};
  if (::fstat(std::atoi(text), &kind) == 0 && (S_ISSOCK(kind.st_mode) || S_ISFIFO(kind.st_mode))) return "";
  auto problem = fmt::format(
      "PMI_FD={} is no connection to a launcher, but left over from another process: MPI starts without", text);
  ::unsetenv("PMI_FD");
  return problem;
}

/// Turns off MPICH's copies between processes (CMA) in a pid namespace. MPICH addresses the ranks of a host by process
/// id and, if each rank has its own pid namespace (containers), reads its own memory instead, without an error. Call
/// before MPI_Init.
void avoid_copies_by_pid() {
  // The initial pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO), in which all ranks of a host see each
  // other.
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (here == "pid:[4026531836]") return;
  constexpr int keep_what_the_user_set = 0;
  ::setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0", keep_what_the_user_set);
}

/// Refuses a world of size 1 under a launcher that started more processes: a launcher that speaks another
/// process-management protocol starts N jobs of size 1. \param mpi  the library's name and version
/// \throws Error of bad input when the launcher started more: each would train alone. Job scripts do not count a start
///         that was refused
void refuse_lonely_rank(const std::string& mpi) {
  const auto several = several_started();
  if (!several) return;
  // Some launchers end all processes as soon as one fails; the first one is to print its message before that.
  if (several->first_rank_knows && launcher_rank() != "0") std::this_thread::sleep_for(std::chrono::seconds(1));
  throw Error(ExitCode::bad_input,
              fmt::format("{}, but MPI sees only this one ({}; {}): each would be a job of its own. {}", several->what,
                          several->variable, mpi, several->cure));
}

/// True where a launcher speaks PMIx only and this MPICH was built without it, so that it would end this process with
/// "unsupported PMI version PMIx".
bool lacks_pmix(const std::string& mpi) {
  return std::getenv("PMIX_NAMESPACE") != nullptr && launcher_kind() != LauncherKind::other &&
         mpi.starts_with("MPICH") && loaded_library("libpmix").empty();
}

/// Runs `on_timeout` on a thread of its own unless destroyed in time: for MPI calls that can block for ever.
template <typename Callback>
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, Callback on_timeout)
      : thread_(start_thread("watches how long MPI takes", [&] {
          return std::thread([this, limit, on_timeout] {
            std::unique_lock lock(mutex_);
            if (!changed_.wait_for(lock, limit, [this] { return done_; })) on_timeout();
          });
        })) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

/// Waits until the launcher has read what this rank printed: Hydra's proxy drops what is still in the pipe when a rank
/// aborts. Stops waiting after a second; where stderr is no pipe there is nothing to wait for.
void let_launcher_read_stderr() {
  constexpr auto pause = std::chrono::milliseconds(10);
  struct stat kind {};
  if (::fstat(STDERR_FILENO, &kind) != 0 || !S_ISFIFO(kind.st_mode)) return;
  for (int i = 0, unread = 0; i < 100; ++i) {
    if (::ioctl(STDERR_FILENO, FIONREAD, &unread) != 0 || unread == 0) break;
    std::this_thread::sleep_for(pause);
  }
  // The proxy still has to forward the text to mpiexec.
  std::this_thread::sleep_for(pause);
}

void warn_before_ranks(const std::string& problem) {
  const auto rank = launcher_rank();
  const auto text = fmt::format("{}warning: {}\n", rank.empty() ? "" : fmt::format("[rank {}] ", rank), problem);
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text.data(), text.size());
}

/// Sends a large message from each rank to the next and checks it. In containers, whose processes may not see each
/// other as MPI assumes, large messages have been observed to arrive corrupted without an error.
void check_large_messages(int rank, int size) {
  constexpr std::size_t words = 1 << 17;  // 1 MiB: larger than any threshold for copies between processes
  const auto next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto word_of = [](int sender, std::size_t i) {
    return (static_cast<std::uint64_t>(sender) + 1) * 0x9e3779b97f4a7c15u + i;
  };
  std::vector<std::uint64_t> sent(words), got(words);
  for (std::size_t i = 0; i < words; ++i) sent[i] = word_of(rank, i);
  const int code = MPI_Sendrecv(sent.data(), words, MPI_UINT64_T, next, 0, got.data(), words, MPI_UINT64_T, previous, 0,
                                MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  std::string problem, networks;
  if (code != MPI_SUCCESS) {
    problem = fmt::format("from rank {} or to rank {} failed ({})", previous, next, detail::mpi_error_text(code));
    networks =
        " If hosts share only some of their networks, MPI must be told which (Open MPI: OMPI_MCA_btl_tcp_if_include).";
  } else {
    for (std::size_t i = 0; i < words && problem.empty(); ++i) {
      if (got[i] != word_of(previous, i)) problem = fmt::format("from rank {} did not arrive as it was sent", previous);
    }
  }
  if (problem.empty()) return;
  throw RuntimeFailure(
      fmt::format("MPI does not hand over large messages: one of 1 MiB {}.{} If each rank runs in a container or pid "
                  "namespace of its own, MPI must not copy between processes (MPICH: MPIR_CVAR_CH4_CMA_ENABLE=0)",
                  problem, networks));
}

}  // namespace

MpiEnvironment::MpiEnvironment(const MpiOptions& options) : options_(options) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.init_timeout).count();
  const Watchdog watchdog(options.init_timeout, [seconds] {
    const auto text = fmt::format(
        "[rank {}] error: MPI did not start within {} s (--init-timeout): some rank never arrived; this one did\n",
        launcher_rank().empty() ? "?" : launcher_rank(), seconds);
    [[maybe_unused]] const auto n = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(static_cast<int>(ExitCode::failed));
  });
  if (const auto problem = forget_lost_launcher(); !problem.empty()) warn_before_ranks(problem);
  if (const auto problem = host_problem(); !problem.empty()) {
    warn_before_ranks(problem);
    let_launcher_read_stderr();  // MPI_Init is about to end this process
  }
  if (lacks_pmix(library_version())) {
    refuse_lonely_rank(library_version());
    throw Error(ExitCode::bad_input, library_version() +
                                         " knows no PMIx, by which this launcher connects ranks: start the "
                                         "program without it, or load the module of the launcher's MPI");
  }
  avoid_copies_by_pid();
  avoid_small_shared_memory();
  int provided = 0;
  detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) refuse_lonely_rank(library_version());
  if (size > 1) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    check_large_messages(rank, size);
  }
  MPI_Comm comm = MPI_COMM_NULL;
  detail::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  failure_group_ = std::make_unique<detail::MpiGroup>(detail::UniqueComm(comm),
                                                      MpiOptions{std::chrono::hours(24), std::chrono::hours(24)});
}

bool MpiEnvironment::everyone_failed(std::chrono::milliseconds patience) {
  return static_cast<detail::MpiGroup&>(*failure_group_).barrier_within(patience);
}

MpiEnvironment::~MpiEnvironment() {
  // While an exception unwinds, the other ranks are still working; the handler calls abort().
  if (std::uncaught_exceptions() > 0) return;
  const int exit_code = exit_code_;
  failure_group_.reset();
  // Some MPICH releases hang in MPI_Finalize across hosts (pmodels/mpich PR 6596). All work is complete at this point.
  const Watchdog watchdog(exit_patience_, [exit_code] { ::_exit(exit_code); });
  MPI_Finalize();
}

std::unique_ptr<ProcessGroup> MpiEnvironment::world() {
  MPI_Comm comm = MPI_COMM_NULL;
  detail::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  auto group = std::make_unique<detail::MpiGroup>(detail::UniqueComm(comm), options_);
  group->know_peers();
  return group;
}

void MpiEnvironment::abort(int exit_code) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    // MPI_Abort itself may hang on a broken network.
    const Watchdog watchdog(std::chrono::seconds(5), [exit_code] { ::_exit(exit_code); });
    let_launcher_read_stderr();
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  ::_exit(exit_code);
}

std::string MpiEnvironment::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string all(text.data(), static_cast<std::size_t>(length));
  std::string line = all.substr(0, all.find('\n'));
  // "MPICH Version:      5.0.2" reads better as "MPICH 5.0.2".
  if (const auto at = line.find("Version:"); at != std::string::npos) {
    const auto number = line.find_first_not_of(" \t", at + 8);
    line = line.substr(0, at) + (number == std::string::npos ? "" : line.substr(number));
  }
  // "Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: ..."
  if (line.starts_with("Open MPI v")) line = line.substr(0, line.find(',')).erase(9, 1);
  return line;
}

}  // namespace fsdp
