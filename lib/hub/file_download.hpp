#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/files/claim.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/hub/download.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_client.hpp"
#include "lib/hub/partial_file.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {

/// Extracts the bytes of a file from the response to a range request. Every header field that describes the bytes is
/// compared with the request.
class RangeSink : public HttpSink {
 public:
  using Store = std::function<void(std::uint64_t begin, std::span<const std::byte> bytes)>;

  struct Wanted {
    std::uint64_t file_bytes = 0;   ///< size of the whole file
    std::uint64_t first_byte = 0;   ///< first byte of the request's Range
    bool accept_whole_file = true;  ///< extract the wanted bytes from a response with the whole file
  };

  /// \param left         bytes that are still wanted; received bytes are removed. Must outlive this object
  /// \param piece_bytes  number of bytes that are buffered before `store` is called
  RangeSink(const Wanted& wanted, IntervalSet& left, std::uint64_t piece_bytes, Store store);

  bool head(const HttpHead& head) override;
  bool body(std::span<const std::byte> bytes) override;
  /// Stores the buffered bytes. Must be called after every transfer, including one that was cut.
  void flush();

  std::uint64_t stored_bytes() const { return stored_bytes_; }
  /// Why the response is unusable; "" when it is usable.
  const std::string& complaint() const { return complaint_; }
  /// True when the server answered a range request with the whole file and accept_whole_file was false.
  bool range_ignored() const { return range_ignored_; }

 private:
  bool reject(const std::string& why);
  void take(std::uint64_t begin, std::span<const std::byte> bytes);

  Wanted wanted_;
  IntervalSet& left_;
  std::uint64_t piece_bytes_;
  Store store_;
  bool taking_ = false;  ///< the response holds bytes of the file
  std::uint64_t position_ = 0;
  std::uint64_t held_begin_ = 0;
  std::vector<std::byte> held_;
  std::chrono::steady_clock::time_point held_since_{};
  std::uint64_t stored_bytes_ = 0;
  std::string complaint_;
  bool range_ignored_ = false;
};

/// Transfer rate over the last few seconds and the remaining time, for the progress display.
class TransferRate {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TransferRate(std::uint64_t total_bytes) : total_bytes_(total_bytes) {}
  /// \param received_bytes  bytes received over the network so far
  void sample(Clock::time_point now, std::uint64_t received_bytes);
  /// Bytes per second; 0 until there are two samples.
  double rate() const;
  /// "1.20 of 13.48 GiB, 9 %, 112 MiB/s, 1:50 left"
  std::string line(std::uint64_t present_bytes) const;

 private:
  struct Sample {
    Clock::time_point time;
    std::uint64_t bytes;
  };
  std::uint64_t total_bytes_;
  std::deque<Sample> samples_;
};

/// State shared by all file downloads of one run. The referenced objects must outlive the downloads.
struct DownloadContext {
  const DownloadOptions& options;
  const HubSettings& settings;
  const SnapshotStore& store;
  std::string commit;
  const Logger& log;
  std::function<bool()> stop;  ///< true when the user or the scheduler stops the run, or another file failed
  Heartbeat& heartbeat;
  std::atomic<std::uint64_t> received_bytes{0};  ///< bytes received over the network and written to disk
  std::atomic<std::uint64_t> present_bytes{0};   ///< bytes of the selected files on disk, for the progress display
};

/// Thrown when another process took over the claim, so that this process must not continue with the file.
class ClaimLost : public std::runtime_error {
 public:
  ClaimLost() : std::runtime_error("another process took over") {}
};

/// The download of one content, which may be that of several files of a commit. open(), finish() and close() must be
/// called by one thread at a time while no other thread is in fetch(); the other members are thread-safe.
class FileDownload {
 public:
  /// \param files  at least one file, all of equal hash and size; a local folder holds a copy for each
  FileDownload(DownloadContext& context, std::vector<RemoteFile> files);

  enum class Opened {
    there,  ///< the content was present and valid, and is part of the snapshot
    busy,   ///< another process holds the claim
    open    ///< this process holds the claim; continue with take() and fetch()
  };
  /// Looks for the content and, if it is absent, takes the claim. Bytes on disk are read back and checked.
  /// \throws Error, DownloadStopped
  Opened open();

  /// Ranges to fetch next; empty when every missing range is being fetched.
  std::vector<ByteRange> take();
  /// Fetches ranges returned by take(), with retries. \throws Error, ClaimLost, DownloadStopped
  void fetch(HubClient& hub, const std::vector<ByteRange>& ranges);
  bool complete() const { return partial_->complete(); }
  bool lost() const { return claim_->lost(); }
  /// Checks the hash and adds the content to the snapshot.
  /// \return false when the hash was wrong and the content must be fetched again
  /// \throws FormatError when the hash is wrong a second time
  bool finish();
  /// Releases the claim.
  void close();

  const RemoteFile& file() const { return files_.front(); }
  /// The process that holds the claim, for messages; valid after open() returned `busy`.
  const std::string& holder() const { return watch_.holder(); }

 private:
  bool find_content();
  bool content_is_right(const RemoteFile& file) const;
  void add_to_snapshot(const std::filesystem::path& source);
  struct Attempt;
  Attempt attempt(HubClient& hub, IntervalSet& left);
  /// Sets `result` from a well-formed response. \param left_bytes  bytes of the request that are still missing
  void judge(const HubClient& hub, const HubAnswer& answer, std::uint64_t left_bytes, Attempt& result);
  std::string url(const HubClient& hub);
  void forget_url(const std::string& url);

  DownloadContext& context_;
  std::vector<RemoteFile> files_;
  ClaimWatch watch_;
  std::shared_ptr<Claim> claim_;
  std::unique_ptr<PartialFile> partial_;
  int wrong_contents_ = 0;
  std::uint64_t counted_bytes_ = 0;          ///< this file's share of context_.present_bytes when it was opened
  std::atomic<bool> ranges_ignored_{false};  ///< the server ignores Range and sends whole files

  std::mutex url_mutex_;
  std::string signed_url_;  ///< redirect target of the hub; expires after about an hour
};

/// Schedules the download of many files on threads. Ranges of open files come before new files, and new files come in
/// order. Files that another process downloads are polled until they are complete.
class DownloadQueue {
 public:
  /// \param stop    called often; returning true ends the work
  /// \param failed  set when a thread fails, so that `stop` ends the other threads, too
  /// \param poll    interval at which a file that another process downloads is checked
  DownloadQueue(std::vector<std::unique_ptr<FileDownload>> files, std::function<bool()> stop, std::atomic<bool>& failed,
                std::chrono::milliseconds poll);

  /// Works until every file is done, one failed, or `stop` returns true. Each thread calls it with its own client.
  void work(HubClient& hub, const Logger& log);
  /// Rethrows the exception of the first thread that failed, if any.
  void rethrow_failure();
  std::size_t files_done() const;

 private:
  enum class State { pending, at_work, active, waiting, done };
  struct Entry {
    std::unique_ptr<FileDownload> file;
    State state = State::pending;
    int fetching = 0;   ///< number of threads in fetch()
    bool told = false;  ///< the log says that another process downloads the file
    std::chrono::steady_clock::time_point try_again{};
  };
  enum class Step { open, fetch, finish };
  struct Work {
    Entry* entry;
    Step step;
    std::vector<ByteRange> ranges;
  };
  std::optional<Work> next();
  std::optional<Work> next_of_active();
  void carry_out(Work& work, HubClient& hub, const Logger& log);
  void set_state(Entry& entry, State state);
  void fail();

  std::vector<Entry> entries_;
  std::function<bool()> stop_;
  std::atomic<bool>& failed_;
  std::chrono::milliseconds poll_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
};

}  // namespace fsdp
