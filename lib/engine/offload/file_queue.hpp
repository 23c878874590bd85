#pragma once
// Reads and writes of a scratch file that go on while the caller computes. For one thread.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lib/engine/offload/scratch_file.hpp"

namespace fsdp {

/// Multiples of kTransferUnit_bytes, all three.
struct FileTransfer {
  bool write = false;
  std::byte* data = nullptr;  ///< is the queue's until the transfer has ended
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

class FileQueue {
 public:
  using Ticket = std::uint64_t;
  virtual ~FileQueue() = default;  ///< waits for what is under way
  virtual Ticket start(const FileTransfer& transfer) = 0;
  /// Waits until the transfer has ended; call once per ticket. \throws IoError naming the directory and the system's
  /// error
  virtual void wait(Ticket ticket) = 0;
  virtual std::string_view name() const = 0;

  /// Called from wait() for as long as the disk does not answer, every half minute.
  void on_silence(std::function<void(double seconds)> tell) { tell_ = std::move(tell); }

 protected:
  static constexpr double kSilence_seconds = 30;
  void tell_of_silence(double seconds) const {
    if (tell_) tell_(seconds);
  }

 private:
  std::function<void(double)> tell_;
};

/// io_uring where it was built in and the kernel has it, else threads. FSDP_OFFLOAD_IO=threads asks for these.
/// \param file  must outlive the queue
std::unique_ptr<FileQueue> make_file_queue(const ScratchFile& file);

namespace detail {
/// Null: not built in, or the kernel refuses.
std::unique_ptr<FileQueue> make_uring_queue(const ScratchFile& file);
std::unique_ptr<FileQueue> make_thread_queue(const ScratchFile& file);

/// Bytes per request: large enough for a disk's full speed with few requests.
inline constexpr std::uint64_t kPiece_bytes = std::uint64_t{1} << 20;

/// A part of a transfer.
struct FilePiece {
  FileTransfer transfer;
  FileQueue::Ticket ticket = 0;

  /// Takes what one call moved, as read(2) and write(2) tell it (an error as -errno). \return whether it has ended,
  /// with `error`
  bool advance(std::int64_t moved, int& error);
};

/// \param error  of errno
[[noreturn]] void fail(const ScratchFile& file, bool write, int error);
}  // namespace detail

}  // namespace fsdp
