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
#include <string>
#include <vector>

#include "lib/base/claim.hpp"
#include "lib/base/log.hpp"
#include "lib/hub/download.hpp"
#include "lib/hub/hub_client.hpp"
#include "lib/hub/partial_file.hpp"
#include "lib/hub/range_sink.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {

/// Speed over the last seconds and the time that is left.
class TransferProgress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TransferProgress(std::uint64_t total_bytes) : total_bytes_(total_bytes) {}
  /// \param received_bytes  from the network so far
  void sample(Clock::time_point now, std::uint64_t received_bytes);
  /// Bytes per second; 0 before there are two samples.
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

// One content on its way from the hub to disk.

/// What all downloads of a run share. The references must outlive them.
struct DownloadContext {
  const DownloadOptions& options;
  const HubSettings& settings;
  const SnapshotStore& store;
  std::string commit;
  const Logger& log;
  std::function<bool()> stop;  ///< asked by the user or the scheduler, or another file failed
  Heartbeat& heartbeat;
  std::atomic<std::uint64_t> received_bytes{0};  ///< from the network, and stored
  std::atomic<std::uint64_t> present_bytes{0};   ///< of the wanted files, for the progress display
};

/// Another process took the claim over: this one must not go on with the file.
class ClaimLost : public std::runtime_error {
 public:
  ClaimLost() : std::runtime_error("another process took over") {}
};

/// The files of one commit that have one content, and their download. open(), finish() and close() are called by one
/// thread at a time while no other is in fetch(); the rest may be called by several.
class FileDownload {
 public:
  /// \param files  at least one, of equal hash and size; in a local folder each is a file of its own
  FileDownload(DownloadContext& context, std::vector<RemoteFile> files);

  enum class Opened {
    there,  ///< the content was there and right; the snapshot has it
    busy,   ///< another process downloads it
    open    ///< claimed by this process: take() and fetch()
  };
  /// Looks for the content, then for the claim. Reads what is there to check it. \throws Error, DownloadStopped
  Opened open();

  /// Ranges to fetch next; empty when there are none now.
  std::vector<ByteRange> take();
  /// Fetches ranges that take() gave, until they are there. \throws Error, ClaimLost, DownloadStopped
  void fetch(HubClient& hub, const std::vector<ByteRange>& ranges);
  bool complete() const { return partial_->complete(); }
  bool lost() const { return claim_->lost(); }
  /// Compares the hash and puts the content into the snapshot.
  /// \return false when the bytes were wrong and are to be fetched again. \throws FormatError when they are wrong again
  bool finish();
  /// Gives the claim up.
  void close();

  const RemoteFile& file() const { return files_.front(); }
  /// Who has the claim, after open() said busy.
  const std::string& holder() const { return watch_.holder(); }

 private:
  bool find_content();
  bool content_is_right(const RemoteFile& file) const;
  void add_to_snapshot(const std::filesystem::path& source);
  struct Attempt;
  Attempt attempt(HubClient& hub, IntervalSet& left);
  /// Fills `result` with what a response of the right form means. \param left_bytes  still missing after it
  void judge(const HubClient& hub, const HubAnswer& answer, std::uint64_t left_bytes, Attempt& result);
  std::string url(const HubClient& hub);
  void forget_url(const std::string& url);

  DownloadContext& context_;
  std::vector<RemoteFile> files_;
  ClaimWatch watch_;
  std::shared_ptr<Claim> claim_;
  std::unique_ptr<PartialFile> partial_;
  int wrong_contents_ = 0;
  std::uint64_t counted_bytes_ = 0;          ///< of this file in context_.present_bytes when it was opened
  std::atomic<bool> ranges_ignored_{false};  ///< the server sends whole files only

  std::mutex url_mutex_;
  std::string signed_url_;  ///< where the hub redirected to; valid for some time
};

/// Deals the work on many files out to threads: files in order, ranges of files that are open before files that are
/// not, files that another process downloads again and again until they are there.
class DownloadQueue {
 public:
  /// \param stop    asked often; true ends the work
  /// \param failed  set when a thread met an error, so that `stop` can tell the others
  /// \param poll    time between two looks at a file that another process downloads
  DownloadQueue(std::vector<std::unique_ptr<FileDownload>> files, std::function<bool()> stop, std::atomic<bool>& failed,
                std::chrono::milliseconds poll);

  /// Works until everything is done, something failed, or it is to stop. Called by each thread with a client of its
  /// own.
  void work(HubClient& hub, const Logger& log);
  /// \throws what the first thread that failed met
  void rethrow_failure();
  std::size_t files_done() const;

 private:
  enum class State { pending, at_work, active, waiting, done };
  struct Entry {
    std::unique_ptr<FileDownload> file;
    State state = State::pending;
    int fetching = 0;   ///< threads in fetch()
    bool told = false;  ///< that another process has it
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
