#include "lib/ranks/launch_checks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "lib/base/error.hpp"
#include "lib/ranks/launchers.hpp"

namespace fsdp::detail {
namespace {

/// Why a few pages of shared memory cannot be had, as an errno; 0 when they can.
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

bool first_of_its_host() {
  for (const char* variable : {"MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"}) {
    if (const char* rank = std::getenv(variable)) return std::string_view(rank) == "0";
  }
  return true;
}

std::string problem_of_this_host() {
  if (::access("/proc/self", F_OK) != 0) {
    return "this host has no /proc, which MPI needs to start: mount it (mount -t proc proc /proc; in a container, bind "
           "it)";
  }
  const char* here = std::getenv("MPI_LOCALNRANKS");
  if (here != nullptr && std::atoi(here) < 2) return "";
  if (const int error = shared_memory_error(); error != 0) {
    return fmt::format(
        "/dev/shm cannot be used ({}), and MPI needs it between the ranks of a host: mount it (mount -t "
        "tmpfs tmpfs /dev/shm; in a container, bind it or give it a size), or remove what fills it",
        std::strerror(error));
  }
  return "";
}

}  // namespace

std::string host_problem() {
  if (!launched_by_mpi()) return "";
  auto problem = problem_of_this_host();
  if (problem.empty() || first_of_its_host()) return problem;
  // The first is to be heard before MPI_Init ends this rank, and with it the job.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return "";
}

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

void avoid_copies_by_pid() {
  // The namespace that the kernel starts with (include/linux/proc_ns.h, PROC_PID_INIT_INO); there all ranks of a host
  // see each other.
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (here == "pid:[4026531836]") return;
  constexpr int keep_what_the_user_set = 0;
  ::setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0", keep_what_the_user_set);
}

/// A launcher that speaks another process-management protocol starts N jobs of size 1.
void refuse_lonely_rank(const std::string& mpi) {
  const auto several = several_started();
  if (!several) return;
  throw RuntimeFailure(fmt::format("{}, but MPI sees only this one ({}; {}): each would be a job of its own. {}",
                                   several->what, several->variable, mpi, several->cure));
}

}  // namespace fsdp::detail
