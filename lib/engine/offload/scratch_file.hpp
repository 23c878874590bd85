#pragma once
// An unnamed temporary file on a disk, for data that does not fit into memory.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace fsdp {

/// Offsets, lengths and addresses of transfers are multiples of this, which satisfies O_DIRECT on any disk.
inline constexpr std::uint64_t kTransferUnit_bytes = 4096;

/// A temporary file without a directory entry: it disappears when the program ends for any reason.
class ScratchFile {
 public:
  /// \param directory  created if missing. \throws IoError naming the directory and the requirements of
  /// --offload-optimizer
  explicit ScratchFile(const std::filesystem::path& directory);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  int fd() const { return fd_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// Whether the file system supports O_DIRECT, so that transfers bypass the page cache.
  bool is_direct() const { return direct_; }
  /// Whether the file system resides in host memory, so that offloading to it saves nothing.
  bool is_in_memory() const;

  /// Allocates disk space for the first `bytes` of the file. \return false when there is not enough space. \throws
  /// IoError for any other error
  bool reserve(std::uint64_t bytes);
  std::uint64_t free_bytes() const;

  /// Reads synchronously; may be called from any thread. \throws IoError
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const;

 private:
  std::filesystem::path directory_;
  int fd_ = -1;
  bool direct_ = false;
};

}  // namespace fsdp
