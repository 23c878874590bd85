#pragma once
// Room on a disk for what does not fit into memory: a file without a name.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace fsdp {

/// Offsets, lengths and addresses of transfers are multiples of this, as O_DIRECT requires on any disk.
inline constexpr std::uint64_t kTransferUnit_bytes = 4096;

/// A temporary file that cannot be mistaken for one to keep and that disappears when the program ends, however it ends.
class ScratchFile {
 public:
  /// \param directory  made when absent. \throws IoError naming it and what --offload-optimizer needs
  explicit ScratchFile(const std::filesystem::path& directory);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  int fd() const { return fd_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// Transfers pass by the page cache: the file system has O_DIRECT.
  bool is_direct() const { return direct_; }
  /// The file system is the host's memory: nothing is won by it.
  bool is_in_memory() const;

  /// Takes room for the first `bytes`. \return false: there is not as much. \throws IoError for any other reason
  bool reserve(std::uint64_t bytes);
  std::uint64_t free_bytes() const;

  /// Now, from any thread. \throws IoError
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const;

 private:
  std::filesystem::path directory_;
  int fd_ = -1;
  bool direct_ = false;
};

}  // namespace fsdp
