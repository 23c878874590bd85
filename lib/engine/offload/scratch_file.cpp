#include "lib/engine/offload/scratch_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

/// Creates the file under a temporary name and unlinks it at once, for file systems without O_TMPFILE.
int open_and_unlink(const std::filesystem::path& directory) {
  auto name = (directory / ".fsdp-offload-XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

int open_nameless(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  return fd >= 0 || errno == EACCES || errno == ENOSPC || errno == EROFS ? fd : open_and_unlink(directory);
}

}  // namespace

ScratchFile::ScratchFile(const std::filesystem::path& directory) : directory_(directory) {
  std::error_code problem;
  std::filesystem::create_directories(directory, problem);
  if (!problem) fd_ = open_nameless(directory);
  if (fd_ < 0) {
    throw IoError(
        directory.string() + ": no scratch file can be made there: " + (problem ? problem.message() : reason(errno)),
        Remedy::disk_of_each_node);
  }
  const int flags = ::fcntl(fd_, F_GETFL);
  direct_ = flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
}

ScratchFile::~ScratchFile() { ::close(fd_); }

bool ScratchFile::is_in_memory() const {
  constexpr decltype(statfs::f_type) kTmpfs = 0x01021994, kRamfs = 0x858458f6;
  struct statfs about {};
  return ::fstatfs(fd_, &about) == 0 && (about.f_type == kTmpfs || about.f_type == kRamfs);
}

std::uint64_t ScratchFile::free_bytes() const {
  struct statvfs about {};
  if (::fstatvfs(fd_, &about) != 0) return 0;
  return static_cast<std::uint64_t>(about.f_bavail) * about.f_frsize;
}

bool ScratchFile::reserve(std::uint64_t bytes) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) before.st_size = 0;
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    // Some file systems keep the blocks that they had allocated before the failure.
    if (::ftruncate(fd_, before.st_size) != 0) throw IoError(directory_.string() + ": " + reason(errno));
    return false;
  }
  if (errno != EOPNOTSUPP) throw IoError(directory_.string() + ": the scratch file cannot grow: " + reason(errno));
  // Without fallocate, compare with the free space; other programs may still use it up before the file is written.
  constexpr std::uint64_t kBlock_bytes = 512;
  return bytes <= free_bytes() + static_cast<std::uint64_t>(before.st_blocks) * kBlock_bytes;
}

void ScratchFile::read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset_bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw IoError(directory_.string() + ": the scratch file cannot be read: " + reason(n < 0 ? errno : EIO));
    out = out.subspan(n);
    offset_bytes += static_cast<std::uint64_t>(n);
  }
}

}  // namespace fsdp
