#include "lib/files/write/pieces.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "lib/base/file.hpp"
#include "lib/files/formats/crc32.hpp"
#include "lib/files/write/copy.hpp"

namespace fsdp::detail {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

/// Elements of the next piece. Pieces end at page boundaries of the output where possible, so that two threads rarely
/// write to one page.
std::uint64_t piece_elements(std::uint64_t offset_bytes, std::uint64_t left, std::uint64_t piece_bytes,
                             std::uint64_t element_bytes) {
  const auto most = std::max<std::uint64_t>(piece_bytes / element_bytes, 1);
  if (left <= most) return left;
  const auto over = (offset_bytes + most * element_bytes) % kPageBytes;
  const auto rounded = (most * element_bytes - std::min(over, most * element_bytes)) / element_bytes;
  return rounded > 0 ? rounded : most;
}

void add_whole(PieceList& list, const Layout& layout, std::vector<std::size_t> segments, std::uint64_t element_bytes) {
  PieceJob job{.first = list.pieces.size(), .count = segments.size(), .whole = true};
  for (const auto segment : segments) {
    list.pieces.push_back({segment, 0, layout.segments[segment].count});
    job.bytes += layout.segments[segment].count * element_bytes;
  }
  list.jobs.push_back(job);
}

}  // namespace

PieceList cut_pieces(const Source& source, const Layout& layout, std::uint64_t piece_bytes) {
  constexpr std::uint64_t most_pieces = 1u << 22;
  PieceList list;
  for (const auto& segment : layout.segments) {
    list.bytes += segment.count * dtype_size_bytes(source.tensors()[segment.tensor].dtype);
  }
  piece_bytes = std::max<std::uint64_t>({piece_bytes, list.bytes / most_pieces, 1});
  std::map<std::size_t, std::vector<std::size_t>> whole;  // tensor -> its segments
  for (std::size_t i = 0; i < layout.segments.size(); ++i) {
    const auto& segment = layout.segments[i];
    const std::uint64_t element_bytes = dtype_size_bytes(source.tensors()[segment.tensor].dtype);
    if (segment.count > 0 && source.prefers_whole(segment.tensor)) {
      whole[segment.tensor].push_back(i);
      continue;
    }
    for (std::uint64_t done = 0; done < segment.count;) {
      const auto offset = segment.offset_bytes + done * element_bytes;
      const auto count = piece_elements(offset, segment.count - done, piece_bytes, element_bytes);
      list.jobs.push_back({.first = list.pieces.size(), .count = 1, .bytes = count * element_bytes});
      list.pieces.push_back({i, done, count});
      list.buffer_bytes = std::max(list.buffer_bytes, count * element_bytes);
      done += count;
    }
  }
  for (auto& [tensor, segments] : whole) {
    add_whole(list, layout, std::move(segments), dtype_size_bytes(source.tensors()[tensor].dtype));
  }
  return list;
}

std::vector<std::size_t> deal_jobs(const std::vector<PieceJob>& jobs, std::size_t num_ranks) {
  constexpr double job_cost_bytes = 16384;  // cost of starting a read and a write, in bytes
  double total = 0;
  for (const auto& job : jobs) total += static_cast<double>(job.bytes) + job_cost_bytes;
  std::vector<std::size_t> begins{0};
  double done = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double middle = done + (static_cast<double>(jobs[i].bytes) + job_cost_bytes) / 2;
    while (begins.size() < num_ranks &&
           middle >= total * static_cast<double>(begins.size()) / static_cast<double>(num_ranks)) {
      begins.push_back(i);
    }
    done += static_cast<double>(jobs[i].bytes) + job_cost_bytes;
  }
  begins.resize(num_ranks + 1, jobs.size());
  return begins;
}

std::vector<std::uint32_t> segment_sums(const Source& source, const Layout& layout, const PieceList& list,
                                        const std::vector<std::uint32_t>& piece_sums) {
  std::vector<std::uint32_t> sums(layout.segments.size(), 0);
  for (std::size_t i = 0; i < list.pieces.size(); ++i) {
    const auto& piece = list.pieces[i];
    const auto element_bytes = dtype_size_bytes(source.tensors()[layout.segments[piece.segment].tensor].dtype);
    sums[piece.segment] = crc32_combine(sums[piece.segment], piece_sums[i], piece.count * element_bytes);
  }
  return sums;
}

/// The state of one thread: a buffer, which stays in the cache of its processor, and the file that it writes.
class PieceCopier::Worker {
 public:
  explicit Worker(PieceCopier& owner)
      : owner_(owner), buffer_(std::make_unique_for_overwrite<std::byte[]>(owner.list_.buffer_bytes)) {}

  void copy(const PieceJob& job) {
    if (job.whole) return copy_whole(job);
    const auto& piece = owner_.list_.pieces[job.first];
    const auto& segment = owner_.layout_.segments[piece.segment];
    const std::span<std::byte> bytes(buffer_.get(), job.bytes);
    const auto known = owner_.source_.read(segment.tensor, segment.first + piece.first, piece.count, bytes, &sums);
    write(job.first, bytes, known);
  }
  void close() {
    if (file_.is_open()) file_.close();
  }

  std::vector<ReadSum> sums;

 private:
  void copy_whole(const PieceJob& job) {
    const std::lock_guard lock(owner_.whole_);
    const auto number = owner_.layout_.segments[owner_.list_.pieces[job.first].segment].tensor;
    const auto& tensor = owner_.source_.tensors()[number];
    const auto count = static_cast<std::uint64_t>(num_elements(tensor.shape));
    const auto element_bytes = dtype_size_bytes(tensor.dtype);
    const auto whole = std::make_unique_for_overwrite<std::byte[]>(count * element_bytes);
    const std::span<std::byte> bytes(whole.get(), count * element_bytes);
    owner_.source_.read(number, 0, count, bytes, &sums);
    for (std::size_t i = job.first; i < job.first + job.count; ++i) {
      const auto& segment = owner_.layout_.segments[owner_.list_.pieces[i].segment];
      write(i, bytes.subspan(segment.first * element_bytes, segment.count * element_bytes), std::nullopt);
    }
  }
  void write(std::size_t piece, std::span<const std::byte> bytes, std::optional<std::uint32_t> sum) {
    const auto& segment = owner_.layout_.segments[owner_.list_.pieces[piece].segment];
    if (owner_.wants_sums_) owner_.piece_sums_[piece] = sum ? *sum : crc32(0, bytes);
    if (!file_.is_open() || segment.file != open_) {
      close();
      file_ = File::open_write(owner_.directory_ / owner_.layout_.files[segment.file].name);
      open_ = segment.file;
    }
    const auto element_bytes = dtype_size_bytes(owner_.source_.tensors()[segment.tensor].dtype);
    file_.write_at(segment.offset_bytes + owner_.list_.pieces[piece].first * element_bytes, bytes);
  }

  PieceCopier& owner_;
  std::unique_ptr<std::byte[]> buffer_;
  File file_;
  std::size_t open_ = 0;
};

PieceCopier::PieceCopier(const Source& source, const Layout& layout, const PieceList& list,
                         std::filesystem::path directory, bool wants_sums, Hooks hooks)
    : source_(source),
      layout_(layout),
      list_(list),
      directory_(std::move(directory)),
      wants_sums_(wants_sums),
      hooks_(std::move(hooks)),
      piece_sums_(wants_sums ? list.pieces.size() : 0) {}

void PieceCopier::fail() noexcept {
  const std::lock_guard lock(results_);
  if (!error_) error_ = std::current_exception();
  failed_ = true;
}

void PieceCopier::run_worker(std::size_t end, bool reports) noexcept try {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds report_every(100);
  auto next_report = Clock::now() + report_every;
  Worker worker(*this);
  while (!failed_) {
    const auto job = next_.fetch_add(1, std::memory_order_relaxed);
    if (job >= end) break;
    if (hooks_.stop && hooks_.stop()) throw Stopped();
    worker.copy(list_.jobs[job]);
    bytes_done_ += list_.jobs[job].bytes;
    if (reports && hooks_.progress && Clock::now() >= next_report) {
      hooks_.progress(bytes_done_);
      next_report = Clock::now() + report_every;
    }
  }
  worker.close();
  const std::lock_guard lock(results_);
  read_sums_.insert(read_sums_.end(), worker.sums.begin(), worker.sums.end());
} catch (...) {
  fail();
}

void PieceCopier::copy(std::size_t begin, std::size_t end, int num_threads) {
  next_ = begin;
  {
    std::vector<std::jthread> threads;
    const auto useful = std::min<std::size_t>(static_cast<std::size_t>(num_threads), end - begin);
    try {
      while (threads.size() + 1 < useful) threads.emplace_back([this, end] { run_worker(end, false); });
    } catch (const std::system_error&) {  // continue with fewer threads
    }
    run_worker(end, true);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace fsdp::detail
