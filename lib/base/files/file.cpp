#include "lib/base/files/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw IoError(path.string() + ": cannot " + what + ": " + std::strerror(error));
}

/// \param shown  name for messages, if it differs from `path`
int open_or_fail(const std::filesystem::path& path, int flags, const char* what,
                 const std::filesystem::path& shown = {}) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (fd < 0) fail(what, shown.empty() ? path : shown, errno);
  return fd;
}

/// Returns "" for a regular file of this user with one name, and otherwise says what the file is.
std::string not_private(const struct stat& status) {
  if (S_ISLNK(status.st_mode)) return "a symbolic link";
  if (!S_ISREG(status.st_mode)) return "no regular file";
  if (status.st_uid != ::geteuid()) return "a file of user " + std::to_string(status.st_uid);
  if (status.st_nlink > 1) return "a file that has " + std::to_string(status.st_nlink) + " names";
  return "";
}

[[noreturn]] void refuse_foreign(const std::filesystem::path& path, const std::string& what) {
  throw IoError(path.string() + ": is " + what + ", expected a regular file of this user alone: remove it");
}

/// Opens without following a link in the last component and without blocking.
int open_itself(const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (fd < 0 && errno == ELOOP) refuse_foreign(path, "a symbolic link");
  if (fd < 0 && errno == ENOENT) throw MissingInput(path.string() + ": cannot open: " + std::strerror(ENOENT));
  if (fd < 0) fail("open", path, errno);
  return fd;
}

int open_private(const std::filesystem::path& path, int flags) {
  // A newly created file belongs to this user even if the file system maps its uid.
  const int created = ::open(path.c_str(), flags | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (created >= 0) return created;
  if (errno != EEXIST) fail("open for writing", path, errno);
  const int fd = open_itself(path, flags);
  struct stat status {};
  const auto what = ::fstat(fd, &status) == 0 ? not_private(status) : "not readable";
  if (!what.empty()) {
    ::close(fd);
    refuse_foreign(path, what);
  }
  return fd;
}

void write_all(int fd, std::span<const std::byte> data, const std::filesystem::path& shown) {
  std::size_t done = 0;
  while (done < data.size()) {
    const auto n = ::write(fd, data.data() + done, data.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", shown, errno);
    done += static_cast<std::size_t>(n);
  }
}

/// \param mode   permissions; 0 for the default according to umask
/// \param shown  name for messages
void write_synced(const std::filesystem::path& path, mode_t mode, std::string_view text,
                  const std::filesystem::path& shown) {
  const int fd = open_or_fail(path, O_RDWR | O_CREAT | O_TRUNC, "create", shown);
  try {
    if (mode != 0) ::fchmod(fd, mode);
    write_all(fd, std::as_bytes(std::span(text.data(), text.size())), shown);
    if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) fail("sync", shown, errno);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) fail("close", shown, errno);
}

/// Inputs need random access and repeated reads; a pipe could also block a program for ever.
void require_regular(const std::filesystem::path& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  const char* kind = S_ISDIR(status.st_mode)    ? "a directory"
                     : S_ISFIFO(status.st_mode) ? "a pipe"
                     : S_ISSOCK(status.st_mode) ? "a socket"
                                                : "a device";
  throw FormatError(path.string() + ": is " + kind + ", a regular file is needed");
}

/// A clone made without Git LFS has a short text in place of each large file. Source: the specification of Git LFS,
/// docs/spec.md, "The Pointer"
void refuse_lfs_pointer(const File& file) {
  constexpr std::string_view first_words = "version https://git-lfs.github.com/spec/";
  constexpr std::uint64_t most_bytes = 1023;
  const auto size = file.size_bytes();
  if (size < first_words.size() || size > most_bytes) return;
  std::string first(first_words.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(first)));
  if (first != first_words) return;
  throw FormatError(file.path().string() +
                    ": is a pointer of Git LFS, not the file that it stands for: git lfs pull in its repository, or "
                    "fsdp-download, fetches the file");
}

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  return path.parent_path() / ("." + path.filename().string() + "." + process_tag() + ".tmp");
}

}  // namespace

File File::open_read(const std::filesystem::path& path) {
  // Checked before opening, because opening a pipe would signal its writer that there is a reader.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) require_regular(path, status);
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) throw MissingInput(path.string() + ": cannot open: " + std::strerror(ENOENT));
  if (fd < 0) fail("open", path, errno);
  File file(fd, path);
  if (::fstat(fd, &status) != 0) fail("stat", path, errno);
  require_regular(path, status);  // the file may have changed since the first check
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  refuse_lfs_pointer(file);
  return file;
}
File File::create(const std::filesystem::path& path) {
  return {open_or_fail(path, O_RDWR | O_CREAT | O_TRUNC, "create"), path};
}
File File::open_write(const std::filesystem::path& path) {
  return {open_or_fail(path, O_WRONLY, "open for writing"), path};
}
File File::open_append(const std::filesystem::path& path) {
  return {open_or_fail(path, O_WRONLY | O_CREAT | O_APPEND, "open for appending"), path};
}

File File::create_new(const std::filesystem::path& path) {
  return {open_or_fail(path, O_RDWR | O_CREAT | O_EXCL, "create"), path};
}
File File::open_update_private(const std::filesystem::path& path) { return {open_private(path, O_RDWR), path}; }
File File::open_append_private(const std::filesystem::path& path) {
  return {open_private(path, O_RDWR | O_APPEND), path};
}
File File::open_read_nofollow(const std::filesystem::path& path) {
  File file{open_itself(path, O_RDONLY), path};
  struct stat status {};
  if (::fstat(file.fd_, &status) != 0) fail("stat", path, errno);
  if (!S_ISREG(status.st_mode)) throw IoError(path.string() + ": is no regular file");
  return file;
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}
File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail("stat", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto n = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset_bytes + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path_, errno);
    if (n == 0) {
      throw FormatError(path_.string(), offset_bytes + done,
                        "the file ends here, " + std::to_string(out.size() - done) + " more bytes were expected");
    }
    done += static_cast<std::size_t>(n);
  }
}

void File::write(std::span<const std::byte> data) { write_all(fd_, data, path_); }

void File::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void File::write_at(std::uint64_t offset_bytes, std::span<const std::byte> data) {
  std::size_t done = 0;
  while (done < data.size()) {
    const auto n = ::pwrite(fd_, data.data() + done, data.size() - done, static_cast<off_t>(offset_bytes + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path_, errno);
    done += static_cast<std::size_t>(n);
  }
}

void File::truncate(std::uint64_t size_bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0) fail("truncate", path_, errno);
}

void File::sync() {
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail("sync", path_, errno);
}

void File::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0) fail("close", path_, errno);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  return read_text(File::open_read(path), limit_bytes);
}

std::string read_text(const File& file, std::uint64_t limit_bytes) {
  const auto size = file.size_bytes();
  if (size > limit_bytes) {
    throw FormatError(file.path().string() + ": is " + std::to_string(size) + " bytes, more than the " +
                      std::to_string(limit_bytes) + " expected of such a file");
  }
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

void replace_file(const std::filesystem::path& path, std::string_view text) {
  const auto temporary = temporary_sibling(path);
  struct stat old {};
  const bool exists = ::lstat(path.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode) && !S_ISDIR(old.st_mode)) {
    throw IoError(path.string() + ": is no regular file and is not replaced");
  }
  try {
    write_synced(temporary, exists && S_ISREG(old.st_mode) ? old.st_mode & 0777 : 0, text, path);
    std::filesystem::rename(temporary, path);
    sync_name_of(path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw IoError(path.string() + ": cannot replace: " + error.code().message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

void replace_symlink(const std::filesystem::path& target, const std::filesystem::path& link) {
  const auto temporary = temporary_sibling(link);
  std::error_code error;
  std::filesystem::remove(temporary, error);
  std::filesystem::create_symlink(target, temporary, error);
  if (!error) std::filesystem::rename(temporary, link, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw IoError(link.string() + ": cannot link to " + target.string() + ": " + error.message());
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", directory, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0 && error != EINVAL && error != EROFS) fail("sync", directory, error);
}

void sync_name_of(const std::filesystem::path& path) {
  const auto directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::vector<std::filesystem::path> files_of_runs(const std::filesystem::path& path, const std::string& name) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  if (std::filesystem::exists(path / name, error)) return {path / name};
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (std::filesystem::exists(it->path() / name, error)) files.push_back(it->path() / name);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace fsdp
