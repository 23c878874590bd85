#pragma once
// Files: RAII over descriptors, whole reads and writes that never come up short, and atomic replacement.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Owns a file descriptor.
class File {
 public:
  /// Never waits. \throws IoError naming path and reason; FormatError for a pipe, a device or a directory
  static File open_read(const std::filesystem::path& path);
  /// Creates or truncates.
  static File create(const std::filesystem::path& path);
  /// Opens an existing file for write_at(), leaving what it holds.
  static File open_write(const std::filesystem::path& path);
  /// Opens for appending, creating when absent.
  static File open_append(const std::filesystem::path& path);

  // For folders that others may write in, too: what they put there in place of a file is refused, never followed.
  /// Makes a new file. \throws IoError when anything of that name is there, a link to nowhere, too
  static File create_new(const std::filesystem::path& path);
  /// Opens for reading and writing, creating when absent; what is there stays. For a regular file of this user with one
  /// name: no link, neither symbolic nor hard, no pipe.
  /// \throws IoError saying what it is instead
  static File open_update_private(const std::filesystem::path& path);
  /// As open_append(), likewise.
  static File open_append_private(const std::filesystem::path& path);
  /// Opens a regular file of any user for reading unless it is a symbolic link; does not wait for pipes.
  static File open_read_nofollow(const std::filesystem::path& path);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size_bytes() const;

  /// Fills `out` from `offset_bytes`. \throws FormatError when the file ends before that.
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  /// Writes all of `data` at the current position. \throws IoError (disk full, quota, ...)
  void write(std::span<const std::byte> data);
  void write(std::string_view text);
  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> data);
  void truncate(std::uint64_t size_bytes);
  /// fsync(2). \throws IoError
  void sync();
  /// Closes and reports delayed write errors. \throws IoError
  void close();

 private:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::filesystem::path path_;
};

/// Reads a whole file of at most `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit_bytes = 1ull << 30);
std::string read_text(const File& file, std::uint64_t limit_bytes = 1ull << 30);

/// Writes `text` to a temporary sibling, syncs it, renames it over `path` and syncs the folder: readers, and a disk
/// whose power failed, have the old or the new file. A regular file's mode stays, a link is replaced itself. For files
/// that a user names see lib/base/output_file.hpp.
/// \throws IoError naming `path`, also when a device, a pipe or a socket has that name
void replace_file(const std::filesystem::path& path, std::string_view text);

/// Makes `link` a symlink to `target` (taken as it is, so it may be relative), replacing an old link by rename.
void replace_symlink(const std::filesystem::path& target, const std::filesystem::path& link);

/// fsync of a directory, so that names created or renamed in it survive a power cut.
void sync_directory(const std::filesystem::path& directory);

/// The same for the folder that `path` lies in, where this can be done: one that may be written need not be readable.
void sync_name_of(const std::filesystem::path& path);

// Files that runs leave under one name, found by what people point at.

/// `path` itself where it is no directory; of a run's directory its file `name`; of a directory of runs those of all
/// that have one, sorted, which may be none.
std::vector<std::filesystem::path> files_of_runs(const std::filesystem::path& path, const std::string& name);

}  // namespace fsdp
