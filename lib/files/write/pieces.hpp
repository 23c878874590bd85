#pragma once
// A layout's segments cut into what one thread reads and writes at once, and dealt out to ranks.
// Threads of one rank that take pieces from a queue, read them and write them to their place.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp::detail {

/// Elements [first, first + count) of segment number `segment`, counted from the segment's own first element.
struct Piece {
  std::size_t segment = 0;
  std::uint64_t first = 0, count = 0;
};

/// Pieces [first, first + count) that one thread does together: one, or all of a tensor that is best read whole.
struct PieceJob {
  std::size_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;
};

/// The same on every rank. The pieces of a segment are in order and cover it.
struct PieceList {
  std::vector<Piece> pieces;
  std::vector<PieceJob> jobs;
  std::uint64_t bytes = 0;         ///< of all pieces
  std::uint64_t buffer_bytes = 0;  ///< of the largest piece that is no part of a whole tensor
};
/// \param piece_bytes  of a piece at most, unless that makes millions of them
PieceList cut_pieces(const Source& source, const Layout& layout, std::uint64_t piece_bytes);

/// Where each rank's jobs begin: rank r has jobs [result[r], result[r + 1]), about equal in bytes and side by side.
std::vector<std::size_t> deal_jobs(const std::vector<PieceJob>& jobs, std::size_t num_ranks);

/// CRC-32 of each segment of the layout from that of each piece.
std::vector<std::uint32_t> segment_sums(const Source& source, const Layout& layout, const PieceList& list,
                                        const std::vector<std::uint32_t>& piece_sums);

class PieceCopier {
 public:
  struct Hooks {
    std::function<void(std::uint64_t)> progress;  ///< bytes this rank has copied; from the calling thread; may be null
    std::function<bool()> stop;                   ///< from every thread; may be null
  };
  /// Everything must outlive it. `directory` has the layout's files, each with its size.
  PieceCopier(const Source& source, const Layout& layout, const PieceList& list, std::filesystem::path directory,
              bool wants_sums, Hooks hooks);

  /// Copies jobs [begin, end) with `num_threads` threads, the calling one among them.
  /// \throws the first error of any thread, when all have ended; Stopped
  void copy(std::size_t begin, std::size_t end, int num_threads);

  std::uint64_t bytes_done() const { return bytes_done_; }
  /// CRC-32 of each piece; 0 for those that this rank did not copy.
  std::vector<std::uint32_t>& piece_sums() { return piece_sums_; }
  std::vector<ReadSum>& read_sums() { return read_sums_; }

 private:
  class Worker;
  void run_worker(std::size_t end, bool reports) noexcept;
  void fail() noexcept;

  const Source& source_;
  const Layout& layout_;
  const PieceList& list_;
  const std::filesystem::path directory_;
  const bool wants_sums_;
  const Hooks hooks_;

  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> bytes_done_{0};
  std::mutex whole_;  // one tensor in memory at a time
  std::mutex results_;
  std::exception_ptr error_;               // with results_ held
  std::vector<ReadSum> read_sums_;         // with results_ held
  std::vector<std::uint32_t> piece_sums_;  // each element by the thread that copies the piece
};

}  // namespace fsdp::detail
