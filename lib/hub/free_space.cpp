#include "lib/hub/free_space.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

/// Returns 0, or the errno that says why the space is not available.
int try_reserve(int fd, std::uint64_t size_bytes, int mode) {
  struct statfs status {};
  // On tmpfs and ramfs a reservation would allocate the memory now.
  if (::fstatfs(fd, &status) == 0 && (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC)) return 0;
  if (::fallocate(fd, mode, 0, static_cast<off_t>(size_bytes)) == 0) return 0;
  return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? errno : 0;
}

}  // namespace

void reserve_space(const File& file, std::uint64_t size_bytes) {
  if (size_bytes == 0) return;
  if (const int error = try_reserve(file.fd(), size_bytes, 0)) {
    throw IoError(file.path().string() + ": no room for " + format_bytes(static_cast<double>(size_bytes)) + ": " +
                  std::strerror(error));
  }
}

void require_free_space(const std::filesystem::path& directory, std::uint64_t needed_bytes,
                        std::uint64_t needed_files) {
  if (needed_bytes == 0 && needed_files == 0) return;
  make_directories(directory);
  const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) == 0) {
    const auto free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
    if (free_bytes < needed_bytes) {
      throw IoError(directory.string() + ": needs " + text(needed_bytes) + ", but its file system has " +
                        text(free_bytes) + " free",
                    Remedy::other_cache);
    }
    // Some file systems (btrfs, some network file systems) have no inode limit and report 0 of 0.
    if (status.f_files > 0 && status.f_favail < needed_files) {
      throw IoError(directory.string() + ": needs " + std::to_string(needed_files) +
                    " files, but its file system has room for " + std::to_string(status.f_favail) + " more");
    }
  }
  if (needed_bytes == 0) return;
  const auto path = directory / (".tmp." + unique_name());
  const auto probe = File::create_new(path);
  const int error = try_reserve(probe.fd(), needed_bytes, FALLOC_FL_KEEP_SIZE);
  ::unlink(path.c_str());
  if (error == ENOSPC || error == EDQUOT) {
    throw IoError(directory.string() + ": no room for " + text(needed_bytes) + ": " + std::strerror(error),
                  Remedy::other_cache);
  }
}

}  // namespace fsdp
