#pragma once
// Asynchronous reads and writes of a scratch file, for use by one thread.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "lib/engine/offload/scratch_file.hpp"

namespace fsdp {

/// Offset, length and address must be multiples of kTransferUnit_bytes.
struct FileTransfer {
  bool write = false;
  std::byte* data = nullptr;  ///< must not be accessed until the transfer has ended
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

class FileQueue {
 public:
  using Ticket = std::uint64_t;
  virtual ~FileQueue() = default;  ///< waits for transfers in progress
  virtual Ticket start(const FileTransfer& transfer) = 0;
  /// Waits until the transfer has ended; call it once per ticket. \throws IoError naming the directory and the system's
  /// error
  virtual void wait(Ticket ticket) = 0;
  virtual std::string_view name() const = 0;

  /// Sets a function that wait() calls every half minute while the disk does not respond.
  void on_silence(std::function<void(double seconds)> tell) { tell_ = std::move(tell); }

 protected:
  static constexpr double kSilence_seconds = 30;
  void log_silence(double seconds) const {
    if (tell_) tell_(seconds);
  }

 private:
  std::function<void(double)> tell_;
};

/// Uses io_uring if it was built in and the kernel supports it, else threads. FSDP_OFFLOAD_IO=threads forces threads.
/// \param file  must outlive the queue
std::unique_ptr<FileQueue> make_file_queue(const ScratchFile& file);

namespace detail {
/// \return null when io_uring was not built in or the kernel refuses it
std::unique_ptr<FileQueue> make_uring_queue(const ScratchFile& file);
std::unique_ptr<FileQueue> make_thread_queue(const ScratchFile& file);

/// Bytes per request: large enough for a disk's full speed with few requests.
inline constexpr std::uint64_t kPiece_bytes = std::uint64_t{1} << 20;

/// The part of a transfer that one request moves.
struct FilePiece {
  FileTransfer transfer;
  FileQueue::Ticket ticket = 0;

  /// Records the bytes that one call moved, in the convention of read(2) and write(2), with errors as -errno. \return
  /// true when the piece has ended; `error` is then 0 or an errno value
  bool advance(std::int64_t moved, int& error);
};

/// \param error  errno value
[[noreturn]] void fail(const ScratchFile& file, bool write, int error);
}  // namespace detail

}  // namespace fsdp
