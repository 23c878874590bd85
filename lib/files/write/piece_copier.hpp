#pragma once
// Threads of one rank that take pieces from a queue, read them and write them to their place.
#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"
#include "lib/files/write/pieces.hpp"

namespace fsdp::detail {

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
