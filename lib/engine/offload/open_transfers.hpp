#pragma once
// The transfers of a queue that have not been waited for yet.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "lib/engine/offload/file_queue.hpp"

namespace fsdp::detail {

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

}  // namespace fsdp::detail
