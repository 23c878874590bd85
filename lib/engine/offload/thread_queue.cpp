// Reads and writes by threads.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/base/process/usable_resources.hpp"
#include "lib/engine/offload/file_queue.hpp"
#include "lib/engine/offload/open_transfers.hpp"

namespace fsdp::detail {
namespace {

/// Used where the kernel has no io_uring or a site has disabled it.
class ThreadQueue final : public FileQueue {
 public:
  explicit ThreadQueue(const ScratchFile& file) : file_(file) {
    try {
      start_thread("reads and writes the file of offloaded values", [&] {
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
      log_silence(waited);
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

}  // namespace fsdp::detail
