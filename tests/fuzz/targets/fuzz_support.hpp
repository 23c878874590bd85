#pragma once
// Shared by the fuzz targets: inputs as files, and the errors that a parser may throw.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"

namespace fsdp::fuzz {

/// Larger tensors are not read: an input of a few kilobytes can correctly claim more (a view with stride 0).
constexpr std::uint64_t max_read_bytes = 1u << 20;

/// A file in memory that has a path; each input replaces its contents.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("memfd_create failed");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path fill(std::string_view bytes) {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, bytes.data(), bytes.size(), 0) != std::ssize(bytes)) {
      throw std::runtime_error("the file in memory could not be written");
    }
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

/// A directory in memory (/dev/shm) that is removed when the process ends normally.
class MemoryDirectory {
 public:
  MemoryDirectory() {
    std::string pattern = "/dev/shm/fsdp-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp in /dev/shm failed");
    path_ = pattern;
  }
  ~MemoryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryDirectory(const MemoryDirectory&) = delete;
  MemoryDirectory& operator=(const MemoryDirectory&) = delete;

  /// An input holds files, each as: u8 index into `names`, u32 little-endian length, bytes. The last file may be
  /// truncated. Names may have folders. Files of the previous input are removed.
  const std::filesystem::path& fill(std::string_view input, std::span<const std::string_view> names) {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) std::filesystem::remove_all(entry.path());
    while (input.size() >= 5) {
      const auto name = names[static_cast<unsigned char>(input[0]) % names.size()];
      std::size_t length = 0;
      for (int i = 4; i >= 1; --i)
        length = length << 8 | static_cast<unsigned char>(input[static_cast<std::size_t>(i)]);
      input.remove_prefix(5);
      const auto bytes = input.substr(0, length);
      if (name.find('/') != std::string_view::npos) std::filesystem::create_directories((path_ / name).parent_path());
      File file = File::create(path_ / name);
      file.write(bytes);
      input.remove_prefix(bytes.size());
    }
    return path_;
  }

 private:
  std::filesystem::path path_;
};

/// Runs `parse`, which may throw only these two errors. Any other error ends the process, which the fuzzer reports.
template <typename Parse>
void refusal_is_fine(Parse parse) {
  try {
    parse();
  } catch (const FormatError&) {
  } catch (const IoError&) {  // e.g. a file that an index names is missing
  }
}

/// Returns an upper bound of the nesting depth of lists and objects in a JSON text.
inline int depth_of(std::string_view json) {
  int depth = 0, most = 0;
  for (const char c : json) {
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fsdp::fuzz
