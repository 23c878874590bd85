#pragma once
// Cuts the segments of a layout into pieces, distributes them over ranks, and copies them with several threads.
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

/// Elements [first, first + count) of segment number `segment`, counted from the first element of the segment.
struct Piece {
  std::size_t segment = 0;
  std::uint64_t first = 0, count = 0;
};

/// Pieces [first, first + count) that one thread copies together: one piece, or all pieces of a tensor that is best
/// read whole.
struct PieceJob {
  std::size_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;
};

/// The pieces of a layout; equal on every rank. The pieces of a segment are in order and cover it.
struct PieceList {
  std::vector<Piece> pieces;
  std::vector<PieceJob> jobs;
  std::uint64_t bytes = 0;         ///< of all pieces
  std::uint64_t buffer_bytes = 0;  ///< size of the largest piece that is not part of a whole tensor
};
/// \param piece_bytes  largest size of a piece, unless that makes millions of pieces
PieceList cut_pieces(const Source& source, const Layout& layout, std::uint64_t piece_bytes);

/// Distributes the jobs: rank r has jobs [result[r], result[r + 1]), contiguous and about equal in bytes.
std::vector<std::size_t> deal_jobs(const std::vector<PieceJob>& jobs, std::size_t num_ranks);

/// Combines the CRC-32 of each segment of the layout from those of its pieces.
std::vector<std::uint32_t> segment_sums(const Source& source, const Layout& layout, const PieceList& list,
                                        const std::vector<std::uint32_t>& piece_sums);

/// Threads of one rank that take pieces from a queue, read them and write them to their place.
class PieceCopier {
 public:
  struct Hooks {
    std::function<void(std::uint64_t)> progress;  ///< bytes that this rank has copied; on the calling thread, or null
    std::function<bool()> stop;                   ///< called on every thread; may be null
  };
  /// All arguments must outlive the object. `directory` has the files of the layout with their sizes.
  PieceCopier(const Source& source, const Layout& layout, const PieceList& list, std::filesystem::path directory,
              bool wants_sums, Hooks hooks);

  /// Copies jobs [begin, end) with `num_threads` threads, including the calling one.
  /// \throws the first error of any thread, after all have ended; Stopped
  void copy(std::size_t begin, std::size_t end, int num_threads);

  std::uint64_t bytes_done() const { return bytes_done_; }
  /// CRC-32 of each piece; 0 for pieces that this rank did not copy.
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
  std::mutex whole_;  // held while a whole tensor is in memory
  std::mutex results_;
  std::exception_ptr error_;               // with results_ held
  std::vector<ReadSum> read_sums_;         // with results_ held
  std::vector<std::uint32_t> piece_sums_;  // each element is written by the thread that copies the piece
};

}  // namespace fsdp::detail
