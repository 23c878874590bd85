#include "lib/base/files/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

/// Absolute path without a trailing slash; symbolic links of the existing part are resolved.
std::filesystem::path resolved(const std::filesystem::path& path) {
  std::error_code error;
  auto found = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return found.has_filename() || !found.has_relative_path() ? found : found.parent_path();
}

namespace fs = std::filesystem;

/// The file that an output path refers to.
struct Named {
  fs::path path;               ///< links followed
  bool is_descriptor = false;  ///< an open file of this process, such as /dev/stdout
  fs::file_type type = fs::file_type::not_found;
};

Named look_up(const fs::path& path) {
  constexpr int most_links = 40;
  std::error_code ignored;
  Named named{path};
  for (int i = 0; i < most_links && fs::is_symlink(fs::symlink_status(named.path, ignored)); ++i) {
    const auto folder = named.path.has_parent_path() ? named.path.parent_path() : fs::path(".");
    named.is_descriptor = named.is_descriptor || fs::canonical(folder, ignored).string().starts_with("/proc/");
    named.path = folder / fs::read_symlink(named.path, ignored);
  }
  named.type = fs::status(path, ignored).type();
  return named;
}

bool is_written_in_place(const Named& named) {
  return named.is_descriptor || named.type == fs::file_type::character || named.type == fs::file_type::fifo;
}

std::string kind(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a directory";
    case fs::file_type::character:
    case fs::file_type::block:
      return "a device";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    default:
      return "no regular file";
  }
}

void write_in_place(const fs::path& path, const Named& named, std::string_view text) {
  // Opening a pipe without a reader would block for ever. This non-blocking descriptor keeps the pipe open for the
  // second.
  const int fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 && errno == ENXIO) throw IoError(path.string() + ": is " + kind(named.type) + " that nobody reads");
  if (fd < 0) throw IoError(path.string() + ": cannot open for writing: " + std::strerror(errno));
  try {
    auto file = File::open_append(path);
    file.write(text);
    file.close();
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

}  // namespace

std::optional<std::filesystem::path> path_below(const std::filesystem::path& path,
                                                const std::filesystem::path& directory) {
  const auto top = resolved(directory);
  auto here = resolved(path);
  std::filesystem::path way = ".";
  while (true) {
    std::error_code not_there;
    if (here == top || std::filesystem::equivalent(here, top, not_there)) return way.lexically_normal();
    if (!here.has_relative_path()) return std::nullopt;
    way = way == "." ? here.filename() : here.filename() / way;
    here = here.parent_path();
  }
}

void write_output(const fs::path& path, std::string_view text) {
  const auto named = look_up(path);
  if (is_written_in_place(named)) return write_in_place(path, named, text);
  if (named.type != fs::file_type::regular && named.type != fs::file_type::not_found) {
    throw IoError(path.string() + ": is " + kind(named.type) + ": name a file");
  }
  replace_file(named.path, text);
}

fs::path seekable_output(const fs::path& path) {
  auto named = look_up(path);
  const bool is_plain = named.type == fs::file_type::regular || named.type == fs::file_type::not_found ||
                        named.type == fs::file_type::directory;
  if (is_plain && !named.is_descriptor) return named.path;
  throw UsageError(path.string() + ": is " + (named.is_descriptor ? "an open file of this program" : kind(named.type)) +
                   ": this output is written in pieces, which needs a regular file");
}

bool keeps_its_name(const File& file) {
  struct stat open {
  }, named{};
  if (::fstat(file.fd(), &open) != 0) return false;
  return ::stat(file.path().c_str(), &named) == 0 && named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

void keep_mode(const fs::path& replaced, const fs::path& temporary) {
  struct stat status {};
  if (::lstat(replaced.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  ::chmod(temporary.c_str(), status.st_mode & 0777);
}

}  // namespace fsdp
