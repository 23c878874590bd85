#include "lib/base/files/shared_write.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw IoError(path.string() + ": cannot " + what + ": " + std::strerror(error));
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  return path.parent_path() / (".tmp." + unique_name());
}

/// A temporary file, removed by the destructor unless it was renamed, also where writing the text fails: the destructor
/// runs as soon as the delegated constructor is done.
class Temporary {
 public:
  explicit Temporary(std::filesystem::path path) : path_(std::move(path)) {}
  Temporary(std::filesystem::path path, std::string_view text, bool synced) : Temporary(std::move(path)) {
    auto file = File::create_new(path_);
    file.write(text);
    if (synced) file.sync();
    file.close();
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() { ::unlink(path_.c_str()); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// \return false when `path` exists or its folder does not
bool create_with_o_excl(const std::filesystem::path& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    if (errno == EEXIST || errno == ENOENT) return false;
    fail(path, "create", errno);
  }
  const auto written = ::write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(fd);
  if (written == static_cast<ssize_t>(text.size())) return true;
  ::unlink(path.c_str());  // what is there without its whole text would stay in everybody's way
  fail(path, "write", error);
}

}  // namespace

std::string unique_name() {
  std::random_device random;
  std::string name;
  for (int i = 0; i < 2; ++i) {
    const auto bits = random();
    for (int shift = 28; shift >= 0; shift -= 4) name += "0123456789abcdef"[bits >> shift & 15];
  }
  return name;
}

const std::string& process_tag() {
  static const std::string tag = std::to_string(::getpid()) + "-" + unique_name();
  return tag;
}

void make_directories(const std::filesystem::path& directory) {
  std::error_code error;
  const auto other_file_in_the_way = [&] {
    std::error_code gone;
    const auto type = std::filesystem::symlink_status(directory, gone).type();
    return type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::directory;
  };
  do {
    std::error_code gone;
    std::filesystem::create_directories(directory, error);
    if (!error || std::filesystem::is_directory(directory, gone)) return;
    // It existed and then did not: another process removed the folder in between.
  } while (error == std::errc::file_exists && !other_file_in_the_way());
  throw IoError(directory.string() + ": cannot make this folder: " + error.message());
}

void refuse_planted_links(const std::filesystem::path& base, const std::filesystem::path& directory, bool own_links) {
  auto path = base;
  for (const auto& part : directory.lexically_relative(base)) {
    if (part == ".") continue;
    path /= part;
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) continue;
    if (own_links && (status.st_uid == ::geteuid() || status.st_uid == 0)) continue;
    throw FormatError(path.string() + ": is a symbolic link (of user " + std::to_string(status.st_uid) +
                      "), expected a folder: it could lead anywhere and is not followed; remove it");
  }
}

void publish_text(const std::filesystem::path& path, std::string_view text) {
  make_directories(path.parent_path());
  const Temporary temporary(temporary_beside(path), text, true);
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail(path, "replace", errno);
  sync_name_of(path);
}

bool create_exclusively(const std::filesystem::path& path, std::string_view text) {
  const Temporary temporary(temporary_beside(path));
  if (!create_with_o_excl(temporary.path(), text)) return false;
  if (::link(temporary.path().c_str(), path.c_str()) == 0) return true;
  const int error = errno;
  // A repeated NFS request may report that the link exists. The link is this process's own if the file has two names.
  struct stat status {};
  if (::stat(temporary.path().c_str(), &status) == 0 && status.st_nlink == 2) return true;
  if (error == EEXIST || error == ENOENT) return false;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK)
    return create_with_o_excl(path, text);
  fail(path, "create", error);
}

}  // namespace fsdp
