#pragma once
// Goes through the elements of a checkpoint once, in pieces that threads and ranks share: what --check and --verify do.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Elements [first, first + count) of tensor number `tensor`.
struct ElementRange {
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;  ///< all of a tensor that is best read at once: only one of them is visited at a time
};

/// Appends the elements of tensor number `tensor` in ranges of at most `piece_bytes`, or as one range.
void add_ranges(const SourceTensor& described, std::size_t tensor, bool whole, std::uint64_t piece_bytes,
                std::vector<ElementRange>& ranges);

struct ScanOptions {
  int jobs = 0;                          ///< threads per rank; 0: the processors this rank may use, at most 4
  std::uint64_t piece_bytes = 4u << 20;  ///< read at once by a thread
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress;  ///< rank 0, one thread
  std::function<bool()> stop;                                                         ///< true ends the scan
};

/// Calls visit(range, thread) for this rank's share of `ranges`, from `options.jobs` threads; thread numbers from 0.
/// Collective over `group`: every rank passes the same ranges. An error of one rank becomes every rank's.
/// \throws what `visit` throws; Error(failed) when `stop` said so
void scan(std::span<const ElementRange> ranges, ProcessGroup& group, const ScanOptions& options,
          const std::function<void(const ElementRange&, int thread)>& visit);

/// `size` bytes for a range: `kept`, which grows to a piece, or for a whole tensor `passing`.
std::span<std::byte> buffer_for(const ElementRange& range, std::uint64_t size, std::vector<std::byte>& kept,
                                std::vector<std::byte>& passing);

/// Threads that `scan` uses with these options.
int scan_threads(const ScanOptions& options);

/// Collective: the sums that all ranks collected, on rank 0; empty elsewhere.
std::vector<ReadSum> gather_sums(ProcessGroup& group, const std::vector<std::vector<ReadSum>>& by_thread);

}  // namespace fsdp
