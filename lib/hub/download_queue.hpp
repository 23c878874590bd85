#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/hub/file_download.hpp"

namespace fsdp {

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
