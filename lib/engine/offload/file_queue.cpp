#include "lib/engine/offload/file_queue.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef FSDP_HAVE_URING
#include <liburing.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/base/usable_resources.hpp"
#include "lib/base/variables.hpp"

namespace fsdp {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

/// Creates the file under a temporary name and unlinks it at once, for file systems without O_TMPFILE.
int open_and_unlink(const std::filesystem::path& directory) {
  auto name = (directory / ".fsdp-offload-XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

int open_nameless(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  return fd >= 0 || errno == EACCES || errno == ENOSPC || errno == EROFS ? fd : open_and_unlink(directory);
}

}  // namespace

ScratchFile::ScratchFile(const std::filesystem::path& directory) : directory_(directory) {
  std::error_code problem;
  std::filesystem::create_directories(directory, problem);
  if (!problem) fd_ = open_nameless(directory);
  if (fd_ < 0) {
    throw IoError(directory.string() +
                  ": no scratch file can be made there: " + (problem ? problem.message() : reason(errno)) +
                  " (--offload-optimizer nvme:DIR needs a directory on a disk of each node)");
  }
  const int flags = ::fcntl(fd_, F_GETFL);
  direct_ = flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
}

ScratchFile::~ScratchFile() { ::close(fd_); }

bool ScratchFile::is_in_memory() const {
  constexpr decltype(statfs::f_type) kTmpfs = 0x01021994, kRamfs = 0x858458f6;
  struct statfs about {};
  return ::fstatfs(fd_, &about) == 0 && (about.f_type == kTmpfs || about.f_type == kRamfs);
}

std::uint64_t ScratchFile::free_bytes() const {
  struct statvfs about {};
  if (::fstatvfs(fd_, &about) != 0) return 0;
  return static_cast<std::uint64_t>(about.f_bavail) * about.f_frsize;
}

bool ScratchFile::reserve(std::uint64_t bytes) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) before.st_size = 0;
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    // Some file systems keep the blocks that they had allocated before the failure.
    if (::ftruncate(fd_, before.st_size) != 0) throw IoError(directory_.string() + ": " + reason(errno));
    return false;
  }
  if (errno != EOPNOTSUPP) throw IoError(directory_.string() + ": the scratch file cannot grow: " + reason(errno));
  // Without fallocate, compare with the free space; other programs may still use it up before the file is written.
  constexpr std::uint64_t kBlock_bytes = 512;
  return bytes <= free_bytes() + static_cast<std::uint64_t>(before.st_blocks) * kBlock_bytes;
}

void ScratchFile::read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset_bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw IoError(directory_.string() + ": the scratch file cannot be read: " + reason(n < 0 ? errno : EIO));
    out = out.subspan(static_cast<std::size_t>(n));
    offset_bytes += static_cast<std::uint64_t>(n);
  }
}

namespace detail {

bool FilePiece::advance(std::int64_t moved, int& error) {
  error = 0;
  if (moved == -EINTR || moved == -EAGAIN) return false;
  if (moved <= 0) {
    error = moved < 0 ? static_cast<int>(-moved) : EIO;
    return true;
  }
  const auto n = static_cast<std::uint64_t>(moved);
  transfer.data += n;
  transfer.offset += n;
  transfer.bytes -= n;
  return transfer.bytes == 0;
}

void fail(const ScratchFile& file, bool write, int error) {
  auto text = file.directory().string() + ": the scratch file of --offload-optimizer cannot be " +
              (write ? "written: " : "read: ") + std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT)
    text += ": " + format_bytes(static_cast<double>(file.free_bytes())) + " are free there";
  throw IoError(text + "; the run goes on from its last checkpoint (--restart-checkpoint-file latest)");
}

namespace {

/// The open transfers of a queue.
class OpenTransfers {
 public:
  /// \param pieces  receives the pieces of the transfer, appended
  FileQueue::Ticket open(const FileTransfer& transfer, std::deque<FilePiece>& pieces) {
    const auto ticket = next_++;
    auto& open = open_[ticket];
    open.write = transfer.write;
    for (std::uint64_t done = 0; done < transfer.bytes; done += kPiece_bytes) {
      const auto bytes = std::min(kPiece_bytes, transfer.bytes - done);
      pieces.push_back({{transfer.write, transfer.data + done, bytes, transfer.offset + done}, ticket});
      ++open.pieces;
    }
    return ticket;
  }
  bool has_ended(FileQueue::Ticket ticket) const { return open_.at(ticket).pieces == 0; }
  /// Records that a piece of the transfer has ended. Ignores transfers that were already closed after an error.
  /// \param error  errno value; 0: none
  void end_piece(FileQueue::Ticket ticket, int error) {
    const auto open = open_.find(ticket);
    if (open == open_.end()) return;
    if (error != 0) open->second.error = error;
    --open->second.pieces;
  }
  void fail_all(int error) {
    for (auto& [ticket, open] : open_) open.error = error;
  }
  /// Forgets the transfer. \throws IoError when one of its pieces failed
  void close(const ScratchFile& file, FileQueue::Ticket ticket) {
    const auto result = open_.extract(ticket).mapped();
    if (result.error != 0) fail(file, result.write, result.error);
  }

 private:
  struct Open {
    bool write = false;
    std::size_t pieces = 0;
    int error = 0;
  };
  std::map<FileQueue::Ticket, Open> open_;
  FileQueue::Ticket next_ = 0;
};

/// Used where the kernel has no io_uring or a site has disabled it.
class ThreadQueue final : public FileQueue {
 public:
  explicit ThreadQueue(const ScratchFile& file) : file_(file) {
    try {
      start_thread("reads and writes the file of --offload-optimizer", [&] {
        for (auto& worker : workers_) worker = std::thread([this] { work(); });
      });
    } catch (...) {
      end();
      throw;
    }
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;
  ~ThreadQueue() override { end(); }

  Ticket start(const FileTransfer& transfer) override {
    const std::lock_guard lock(mutex_);
    const auto ticket = open_.open(transfer, pieces_);
    wanted_.notify_all();
    return ticket;
  }

  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    const auto patience = std::chrono::duration<double>(kSilence_seconds);
    for (double waited = kSilence_seconds; !ended_.wait_for(lock, patience, [&] { return open_.has_ended(ticket); });
         waited += kSilence_seconds)
      tell_of_silence(waited);
    open_.close(file_, ticket);
  }
  std::string_view name() const override { return "threads"; }

 private:
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wanted_.notify_all();
    for (auto& worker : workers_) {
      if (worker.joinable()) worker.join();
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wanted_.wait(lock, [&] { return ends_ || !pieces_.empty(); });
      if (pieces_.empty()) return;
      auto piece = pieces_.front();
      pieces_.pop_front();
      lock.unlock();
      int error = 0;
      while (!piece.advance(move(piece.transfer), error)) {
      }
      lock.lock();
      open_.end_piece(piece.ticket, error);
      if (open_.has_ended(piece.ticket)) ended_.notify_all();
    }
  }

  std::int64_t move(const FileTransfer& t) const {
    const auto at = static_cast<off_t>(t.offset);
    const auto n = t.write ? ::pwrite(file_.fd(), t.data, t.bytes, at) : ::pread(file_.fd(), t.data, t.bytes, at);
    return n < 0 ? -errno : n;
  }

  const ScratchFile& file_;
  std::mutex mutex_;
  std::condition_variable wanted_, ended_;
  std::deque<FilePiece> pieces_;
  OpenTransfers open_;
  bool ends_ = false;
  std::array<std::thread, 4> workers_;
};

}  // namespace

std::unique_ptr<FileQueue> make_thread_queue(const ScratchFile& file) { return std::make_unique<ThreadQueue>(file); }

#ifdef FSDP_HAVE_URING
namespace {

/// Pieces that the kernel has at a time.
constexpr unsigned kDepth = 256;

class UringQueue final : public FileQueue {
 public:
  /// \param ring  made by io_uring_queue_init(); becomes the queue's
  UringQueue(const ScratchFile& file, const io_uring& ring) : file_(file), ring_(ring), in_kernel_(kDepth) {
    for (unsigned i = 0; i < kDepth; ++i) free_.push_back(i);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  ~UringQueue() override {
    waiting_.clear();
    while (free_.size() < kDepth && take_answer()) {
    }
    io_uring_queue_exit(&ring_);
  }

  Ticket start(const FileTransfer& transfer) override {
    const auto ticket = open_.open(transfer, waiting_);
    io_uring_cqe* answer = nullptr;
    while (io_uring_peek_cqe(&ring_, &answer) == 0) take(answer);
    feed();
    return ticket;
  }

  void wait(Ticket ticket) override {
    while (!open_.has_ended(ticket) && take_answer()) {
    }
    open_.close(file_, ticket);
  }
  std::string_view name() const override { return "io_uring"; }

 private:
  /// Gives the kernel what it has room for.
  void feed() {
    bool some = false;
    while (!waiting_.empty() && !free_.empty()) {
      auto* request = io_uring_get_sqe(&ring_);
      if (request == nullptr) break;
      const auto slot = free_.back();
      free_.pop_back();
      in_kernel_[slot] = waiting_.front();
      waiting_.pop_front();
      const auto& t = in_kernel_[slot].transfer;
      if (t.write) {
        io_uring_prep_write(request, file_.fd(), t.data, static_cast<unsigned>(t.bytes), t.offset);
      } else {
        io_uring_prep_read(request, file_.fd(), t.data, static_cast<unsigned>(t.bytes), t.offset);
      }
      io_uring_sqe_set_data(request, &in_kernel_[slot]);
      some = true;
    }
    if (some) io_uring_submit(&ring_);
  }

  /// \return false: the ring is broken, which every open transfer then says
  bool take_answer() {
    io_uring_submit(&ring_);  // what an earlier call could not take
    io_uring_cqe* answer = nullptr;
    for (double waited = kSilence_seconds;; waited += kSilence_seconds) {
      __kernel_timespec patience{static_cast<long long>(kSilence_seconds), 0};
      const int result = io_uring_wait_cqe_timeout(&ring_, &answer, &patience);
      if (result == 0) break;
      if (result == -ETIME) {
        tell_of_silence(waited);
      } else if (result != -EINTR && result != -EAGAIN) {
        open_.fail_all(-result);
        return false;
      }
    }
    take(answer);
    feed();
    return true;
  }

  void take(io_uring_cqe* answer) {
    auto& piece = *static_cast<FilePiece*>(io_uring_cqe_get_data(answer));
    const int moved = answer->res;
    io_uring_cqe_seen(&ring_, answer);
    free_.push_back(static_cast<unsigned>(&piece - in_kernel_.data()));
    int error = 0;
    if (!piece.advance(moved, error)) {
      waiting_.push_front(piece);
      return;
    }
    open_.end_piece(piece.ticket, error);
  }

  const ScratchFile& file_;
  io_uring ring_;
  std::vector<FilePiece> in_kernel_;
  std::vector<unsigned> free_;  ///< of its places
  std::deque<FilePiece> waiting_;
  OpenTransfers open_;
};

}  // namespace

std::unique_ptr<FileQueue> make_uring_queue(const ScratchFile& file) {
  auto* probe = io_uring_get_probe();  // kernels before 5.6 have rings, but not these
  if (probe == nullptr) return nullptr;
  const bool has_all =
      io_uring_opcode_supported(probe, IORING_OP_READ) != 0 && io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  if (!has_all) return nullptr;
  io_uring ring{};
  if (io_uring_queue_init(kDepth, &ring, 0) != 0) return nullptr;
  return std::make_unique<UringQueue>(file, ring);
}

#else

std::unique_ptr<FileQueue> make_uring_queue(const ScratchFile&) { return nullptr; }

#endif

}  // namespace detail

std::unique_ptr<FileQueue> make_file_queue(const ScratchFile& file) {
  std::unique_ptr<FileQueue> queue;
  if (variable_value("FSDP_OFFLOAD_IO") != "threads") queue = detail::make_uring_queue(file);
  return queue != nullptr ? std::move(queue) : detail::make_thread_queue(file);
}

}  // namespace fsdp
