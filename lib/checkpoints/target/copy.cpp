#include "lib/checkpoints/target/copy.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/target/output_directory.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

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

/// \param piece_bytes  largest size of a piece, unless that makes millions of pieces
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

/// Distributes the jobs: rank r has jobs [result[r], result[r + 1]), contiguous and about equal in bytes.
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

/// Combines the CRC-32 of each segment of the layout from those of its pieces.
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
    const auto count = element_count(tensor.shape);
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

int default_jobs() {
  constexpr int most = 4;
  return std::min(usable_cores(), most);
}

/// Appends the bytes of a value to text that one rank sends to another rank of the same build.
template <typename T>
void append_raw(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T take_raw(std::string_view& text) {
  T value;
  std::memcpy(&value, text.data(), sizeof(value));
  text.remove_prefix(sizeof(value));
  return value;
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// The part of one rank in a copy.
class Copy {
 public:
  Copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
       ProcessGroup& group)
      : source_(source), target_(target), output_(output), options_(options), group_(group) {}

  CopyReport run() {
    const auto start = std::chrono::steady_clock::now();
    plan();
    open_output();
    cut();
    copy_pieces();
    gather_sums();
    finish();
    CopyReport report;
    report.num_files = layout_.files.size();
    for (const auto& file : layout_.files) report.bytes_written += file.size_bytes;
    report.seconds = seconds_since(start);
    return report;
  }

 private:
  bool is_root() const { return group_.rank() == 0; }

  /// Collective like run_agreed(). Messages name the output instead of the temporary directory.
  void agreed(const std::function<void()>& action) {
    run_agreed(group_, [&] {
      try {
        action();
      } catch (const MissingInput&) {
        throw;
      } catch (const IoError& error) {
        throw IoError(with_output_names(error.what()), error.advice());
      }
    });
  }

  std::string with_output_names(std::string text) const {
    const auto hidden = place_ ? hidden_ : temporary_.string();
    if (hidden.empty()) return text;
    const auto shown = target_.is_directory() ? output_.string() : parent_of(output_).string();
    for (auto at = text.find(hidden); at != text.npos; at = text.find(hidden, at + shown.size())) {
      text.replace(at, hidden.size(), shown);
    }
    return text;
  }

  void plan() {
    agreed([&] { layout_ = target_.plan(source_); });
  }

  /// Must come after open_output(), which checks that the output fits on the disk: a damaged source may claim any size,
  /// and the list of pieces grows with it.
  void cut() {
    agreed([&] { list_ = cut_pieces(source_, layout_, options_.piece_bytes); });
    // A rank with another input would write wrong bytes into the output.
    std::vector<double> seen{static_cast<double>(list_.bytes), static_cast<double>(list_.pieces.size()),
                             -static_cast<double>(list_.bytes), -static_cast<double>(list_.pieces.size())};
    group_.all_reduce(seen, Reduce::max);
    if (seen[0] != -seen[2] || seen[1] != -seen[3]) {
      throw RuntimeFailure("the ranks do not see the same input: is it on a file system that all nodes share?");
    }
  }

  void open_output() {
    agreed([&] {
      if (!is_root()) return;
      place_.emplace(source_, layout_, output_, target_.is_directory(), options_.overwrite);
      hidden_ = place_->temporary().string();
      place_->create_files();
      place_->write(layout_.literals);
    });
    layout_.literals.clear();
    layout_.literals.shrink_to_fit();
    temporary_ = group_.broadcast_text(is_root() ? place_->temporary().string() : std::string(), 0);
  }

  /// Several ranks copy in rounds, so that a rank that fails or is stopped ends the others soon.
  void copy_pieces() {
    constexpr std::uint64_t round_bytes = 1ull << 30, most_rounds = 1000;
    const auto num_ranks = static_cast<std::size_t>(group_.size()), rank = to_index(group_.rank());
    const auto begins = deal_jobs(list_.jobs, num_ranks);
    const auto first = begins[rank], count = begins[rank + 1] - first;
    const std::uint64_t rounds =
        num_ranks == 1 ? 1 : std::clamp<std::uint64_t>(list_.bytes / num_ranks / round_bytes, 1, most_rounds);
    const int jobs = options_.jobs > 0 ? options_.jobs : default_jobs();
    std::uint64_t others = 0;
    PieceCopier::Hooks hooks{nullptr, options_.stop};
    if (is_root() && options_.progress) {
      hooks.progress = [&](std::uint64_t local) { options_.progress({local + others, list_.bytes}); };
    }
    copier_.emplace(source_, layout_, list_, temporary_, target_.wants_checksums(), hooks);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      agreed([&] { copier_->copy(first + count * round / rounds, first + count * (round + 1) / rounds, jobs); });
      const auto local = static_cast<double>(copier_->bytes_done());
      others = static_cast<std::uint64_t>(group_.all_reduce(local, Reduce::sum) - local);
    }
    if (hooks.progress) hooks.progress(copier_->bytes_done());
  }

  /// Gathers the sums of all ranks on rank 0.
  void gather_sums() {
    if (group_.size() == 1) return;
    const auto begins = deal_jobs(list_.jobs, static_cast<std::size_t>(group_.size()));
    const auto first = element(begins, group_.rank()), end = begins[to_index(group_.rank()) + 1];
    std::string local;
    if (!is_root()) {
      const auto& sums = copier_->piece_sums();
      for (std::size_t job = first; job < end && !sums.empty(); ++job) {
        for (std::size_t i = 0; i < list_.jobs[job].count; ++i) append_raw(local, sums[list_.jobs[job].first + i]);
      }
      for (const auto& sum : copier_->read_sums()) append_raw(local, sum);
    }
    const auto parts = group_.gather(local, 0);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      std::string_view text = parts[rank];
      auto& sums = copier_->piece_sums();
      for (std::size_t job = begins[rank]; job < begins[rank + 1] && !sums.empty(); ++job) {
        for (std::size_t i = 0; i < list_.jobs[job].count; ++i) {
          sums[list_.jobs[job].first + i] = take_raw<std::uint32_t>(text);
        }
      }
      while (!text.empty()) copier_->read_sums().push_back(take_raw<ReadSum>(text));
    }
  }

  void finish() {
    agreed([&] {
      if (!is_root()) return;
      source_.verify_sums(std::move(copier_->read_sums()));
      std::vector<std::uint32_t> sums;
      if (target_.wants_checksums()) sums = segment_sums(source_, layout_, list_, copier_->piece_sums());
      const auto literals = target_.finish(sums);
      place_->write(literals);
      for (const auto& literal : literals) {
        auto& size = layout_.files[literal.file].size_bytes;
        size = std::max<std::uint64_t>(size, literal.offset_bytes + literal.bytes.size());
      }
      if (options_.stop && options_.stop()) throw Stopped();
      place_->publish(options_.sync, options_.made_by);
    });
  }

  const Source& source_;
  Target& target_;
  const std::filesystem::path& output_;
  const CopyOptions& options_;
  ProcessGroup& group_;
  Layout layout_;
  PieceList list_;
  std::optional<detail::OutputDirectory> place_;  // on rank 0
  std::filesystem::path temporary_;
  std::string hidden_;  // on rank 0: the path of the temporary directory, also after it was renamed
  std::optional<PieceCopier> copier_;
};

}  // namespace

CopyReport copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
                ProcessGroup& group) {
  return Copy(source, target, output, options, group).run();
}

}  // namespace fsdp
