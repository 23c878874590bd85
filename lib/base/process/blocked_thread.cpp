#include "lib/base/process/blocked_thread.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace fsdp {
namespace {

struct Access {
  enum class File { descriptor, path, path_at };  // in the first argument, or in the second
  long number;                                    ///< of the system call
  std::string_view words;
  File file;
};
using enum Access::File;
// Newer architectures have only the newer forms of some calls.
constexpr Access kAccesses[] = {
    {SYS_read, "a read of", descriptor},
    {SYS_pread64, "a read of", descriptor},
    {SYS_readv, "a read of", descriptor},
    {SYS_preadv, "a read of", descriptor},
    {SYS_write, "a write to", descriptor},
    {SYS_pwrite64, "a write to", descriptor},
    {SYS_writev, "a write to", descriptor},
    {SYS_pwritev, "a write to", descriptor},
    {SYS_fsync, "fsync of", descriptor},
    {SYS_fdatasync, "fdatasync of", descriptor},
    {SYS_close, "close of", descriptor},
    {SYS_ftruncate, "truncation of", descriptor},
    {SYS_fallocate, "allocation of", descriptor},
    {SYS_getdents64, "listing of", descriptor},
    {SYS_flock, "a lock of", descriptor},
    {SYS_openat, "the opening of", path_at},
    {SYS_unlinkat, "the removal of", path_at},
    {SYS_mkdirat, "the creation of", path_at},
    {SYS_renameat, "the renaming of", path_at},
    {SYS_renameat2, "the renaming of", path_at},
    {SYS_statx, "a look at", path_at},
#ifdef SYS_rename
    {SYS_open, "the opening of", path},
    {SYS_rename, "the renaming of", path},
    {SYS_unlink, "the removal of", path},
    {SYS_mkdir, "the creation of", path},
    {SYS_stat, "a look at", path},
#endif
#ifdef SYS_newfstatat
    {SYS_newfstatat, "a look at", path_at},
#endif
};

/// The text at an address of this process; "" where there is none.
std::string text_at(unsigned long address) {
  std::array<char, 256> text{};
  iovec to{text.data(), text.size() - 1}, from{};
  std::memcpy(&from.iov_base, &address, sizeof(address));
  from.iov_len = to.iov_len;
  // Reads up to the end of what is mapped.
  if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) <= 0) return "";
  return text.data();
}

std::string link_target(const std::string& path) {
  std::array<char, 4096> target{};
  const auto length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

namespace detail {

std::string file_access(const std::string& line, const std::string& descriptors) {
  std::istringstream words(line);
  long number = -1;
  std::array<unsigned long, 2> arguments{};
  if (!(words >> number >> std::hex >> arguments[0] >> arguments[1])) return "";
  const auto* access =
      std::find_if(std::begin(kAccesses), std::end(kAccesses), [&](const Access& one) { return one.number == number; });
  if (access == std::end(kAccesses)) return "";
  if (access->file != descriptor) {
    const auto name = text_at(arguments[access->file == path ? 0 : 1]);
    return fmt::format("{} {}", access->words, name.empty() ? "a file" : name);
  }
  const auto file = link_target(fmt::format("{}/{}", descriptors, arguments[0]));
  const bool is_device = file.starts_with("/dev/") && !file.starts_with("/dev/shm/");
  if (!file.starts_with('/') || is_device) return "";  // a socket, a pipe, a terminal
  return fmt::format("{} {}", access->words, file);
}

}  // namespace detail

BlockedThread::BlockedThread() : thread_(static_cast<pid_t>(::syscall(SYS_gettid))) {}

std::string BlockedThread::look() {
  std::ifstream file(fmt::format("/proc/self/task/{}/syscall", thread_));
  std::string line;
  std::getline(file, line);
  // Equal in arguments, stack and place in the code: the same call, with all likelihood.
  const bool is_same = line == last_ && !line.empty() && line != "running";
  last_ = std::move(line);
  return is_same ? detail::file_access(last_, "/proc/self/fd") : "";
}

}  // namespace fsdp
