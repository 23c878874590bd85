// Reads and writes by io_uring.
#include "lib/engine/offload/file_queue.hpp"

#ifdef FSDP_HAVE_URING
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/engine/offload/open_transfers.hpp"

namespace fsdp::detail {
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

  /// \return false: the ring failed; every pending transfer reports the error
  bool take_answer() {
    io_uring_submit(&ring_);  // what an earlier call could not take
    io_uring_cqe* answer = nullptr;
    for (double waited = kSilence_seconds;; waited += kSilence_seconds) {
      __kernel_timespec patience{static_cast<long long>(kSilence_seconds), 0};
      const int result = io_uring_wait_cqe_timeout(&ring_, &answer, &patience);
      if (result == 0) break;
      if (result == -ETIME) {
        log_silence(waited);
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

}  // namespace fsdp::detail

#else

std::unique_ptr<fsdp::FileQueue> fsdp::detail::make_uring_queue(const ScratchFile&) { return nullptr; }

#endif
