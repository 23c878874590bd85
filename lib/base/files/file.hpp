#pragma once
// Files: RAII over descriptors, complete reads and writes, and atomic replacement.
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
  /// Opens for reading, without blocking. \throws IoError naming path and reason; FormatError for a pipe, a device, a
  /// directory or a pointer of Git LFS
  static File open_read(const std::filesystem::path& path);
  /// Creates or truncates a file.
  static File create(const std::filesystem::path& path);
  /// Opens an existing file for write_at() and keeps its content.
  static File open_write(const std::filesystem::path& path);
  /// Opens for appending; creates the file if absent.
  static File open_append(const std::filesystem::path& path);

  // For folders that other users may write to: links and special files in place of a file are refused, never followed.
  /// Creates a new file. \throws IoError when the name exists, even as a dangling link
  static File create_new(const std::filesystem::path& path);
  /// Opens for reading and writing and keeps the content; creates the file if absent. Accepts only a regular file of
  /// this user that has one name: no symbolic or hard link, no pipe. \throws IoError that says what the file is instead
  static File open_update_private(const std::filesystem::path& path);
  /// Opens for appending with the checks of open_update_private().
  static File open_append_private(const std::filesystem::path& path);
  /// Opens a regular file of any user for reading. Refuses symbolic links and does not block on pipes.
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

  /// Fills `out` from `offset_bytes` on. \throws FormatError when the file ends before `out` is full
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

/// Writes `text` to a temporary file in the same folder, syncs it, renames it to `path` and syncs the folder. Readers
/// see the old or the new file, also after a power failure. A regular file keeps its mode; a link is itself replaced.
/// For files that a user names, see lib/base/files/output_file.hpp.
/// \throws IoError naming `path`, also when a device, a pipe or a socket has that name
void replace_file(const std::filesystem::path& path, std::string_view text);

/// Makes `link` a symbolic link to `target`, which may be relative. An existing link is replaced by a rename.
void replace_symlink(const std::filesystem::path& target, const std::filesystem::path& link);

/// Syncs a directory, so that names created or renamed in it survive a power failure.
void sync_directory(const std::filesystem::path& directory);

/// Syncs the folder of `path` if possible: a writable folder is not necessarily readable.
void sync_name_of(const std::filesystem::path& path);

/// Finds the file `name` of one or several runs. Returns `path` itself if it is not a directory, `path`/`name` for the
/// directory of a run, and otherwise the sorted files of the run directories in `path`, which may be none.
std::vector<std::filesystem::path> files_of_runs(const std::filesystem::path& path, const std::string& name);

}  // namespace fsdp
