#include "lib/files/transform/check_scan.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "lib/base/error.hpp"
#include "lib/base/usable_cores.hpp"
#include "lib/files/read/gather_sums.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

/// This rank's part of the ranges: neighbours stay together, so that each rank reads its files in order.
std::span<const ElementRange> share_of(std::span<const ElementRange> ranges, int rank, int size) {
  std::uint64_t total = 0;
  for (const auto& range : ranges) total += range.bytes;
  const auto boundary = [&](int r) {
    std::uint64_t before = 0;
    std::size_t i = 0;
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(total) * r / size);
    while (i < ranges.size() && before < wanted) before += ranges[i++].bytes;
    return r == size ? ranges.size() : i;
  };
  const auto begin = rank == 0 ? 0 : boundary(rank);
  return ranges.subspan(begin, boundary(rank + 1) - begin);
}

/// What the threads of one scan share.
struct Scan {
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<bool> ended{false};  ///< early: an error, or asked to
  std::mutex whole;                ///< held while a whole tensor is in memory
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  std::exception_ptr error;
};

void work(Scan& scan, std::span<const ElementRange> mine, int thread,
          const std::function<void(const ElementRange&, int)>& visit) {
  try {
    for (auto i = scan.next++; i < mine.size() && !scan.ended; i = scan.next++) {
      std::unique_lock one_at_a_time(scan.whole, std::defer_lock);
      if (mine[i].whole) one_at_a_time.lock();
      visit(mine[i], thread);
      scan.bytes_done += mine[i].bytes;
    }
  } catch (...) {
    const std::lock_guard lock(scan.mutex);
    if (!scan.error) scan.error = std::current_exception();
    scan.ended = true;
  }
  const std::lock_guard lock(scan.mutex);
  --scan.running;
  scan.changed.notify_all();
}

}  // namespace

int scan_threads(const ScanOptions& options) { return options.jobs > 0 ? options.jobs : std::min(4, usable_cores()); }

std::span<std::byte> buffer_for(const ElementRange& range, std::uint64_t size, std::vector<std::byte>& kept,
                                std::vector<std::byte>& passing) {
  auto& buffer = range.whole ? passing : kept;
  buffer.resize(size);
  return buffer;
}

void add_ranges(const SourceTensor& described, std::size_t tensor, bool whole, std::uint64_t piece_bytes,
                std::vector<ElementRange>& ranges) {
  const std::uint64_t width = dtype_size_bytes(described.dtype);
  const std::uint64_t elements = described.size_bytes() / width;
  const std::uint64_t step = whole ? elements : std::max<std::uint64_t>(1, piece_bytes / width);
  for (std::uint64_t first = 0; first < elements; first += step) {
    const auto count = std::min(step, elements - first);
    ranges.push_back({tensor, first, count, count * width, whole});
  }
}

void scan(std::span<const ElementRange> ranges, ProcessGroup& group, const ScanOptions& options,
          const std::function<void(const ElementRange&, int)>& visit) {
  const auto mine = share_of(ranges, group.rank(), group.size());
  std::uint64_t total = 0;
  for (const auto& range : ranges) total += range.bytes;
  std::uint64_t own_total = 0;
  for (const auto& range : mine) own_total += range.bytes;

  Scan state;
  state.running = scan_threads(options);
  const int num_threads = state.running;
  const auto report = [&] {
    if (!options.progress || group.rank() != 0 || own_total == 0) return;
    // The other ranks are taken to be as far as this one.
    const double part = static_cast<double>(state.bytes_done) / static_cast<double>(own_total);
    options.progress(static_cast<std::uint64_t>(part * static_cast<double>(total)), total);
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < num_threads; ++t) threads.emplace_back([&, t] { work(state, mine, t, visit); });
    std::unique_lock lock(state.mutex);
    while (state.running > 0) {
      state.changed.wait_for(lock, std::chrono::milliseconds(50));
      if (options.stop && options.stop() && !state.ended) {
        state.ended = true;
        if (!state.error) state.error = std::make_exception_ptr(Error(ExitCode::failed, "stopped before the end"));
      }
      report();
    }
  }
  if (!state.error) report();
  run_agreed(group, [&] {
    if (state.error) std::rethrow_exception(state.error);
  });
}

std::vector<ReadSum> gather_sums(ProcessGroup& group, const std::vector<std::vector<ReadSum>>& by_thread) {
  std::vector<ReadSum> own;
  for (const auto& sums : by_thread) own.insert(own.end(), sums.begin(), sums.end());
  return gather_sums(group, own);
}

}  // namespace fsdp
