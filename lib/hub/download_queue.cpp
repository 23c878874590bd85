#include "lib/hub/download_queue.hpp"

#include <algorithm>

namespace fsdp {

DownloadQueue::DownloadQueue(std::vector<std::unique_ptr<FileDownload>> files, std::function<bool()> stop,
                             std::atomic<bool>& failed, std::chrono::milliseconds poll)
    : stop_(std::move(stop)), failed_(failed), poll_(poll) {
  for (auto& file : files) entries_.push_back({std::move(file)});
}

std::optional<DownloadQueue::Work> DownloadQueue::next_of_active() {
  for (auto& entry : entries_) {
    if (entry.state != State::active) continue;
    if (entry.file->lost()) {
      if (entry.fetching > 0) continue;
      entry.file->close();
      entry.state = State::waiting;
      entry.try_again = std::chrono::steady_clock::now() + poll_;
    } else if (entry.fetching == 0 && entry.file->complete()) {
      entry.state = State::at_work;
      return Work{&entry, Step::finish, {}};
    } else if (auto ranges = entry.file->take(); !ranges.empty()) {
      ++entry.fetching;
      return Work{&entry, Step::fetch, std::move(ranges)};
    }
  }
  return std::nullopt;
}

std::optional<DownloadQueue::Work> DownloadQueue::next() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_ || (stop_ && stop_())) return std::nullopt;
    if (auto work = next_of_active()) return work;
    const auto now = std::chrono::steady_clock::now();
    const auto to_open = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.state == State::pending || (entry.state == State::waiting && entry.try_again <= now);
    });
    if (to_open != entries_.end()) {
      to_open->state = State::at_work;
      return Work{&*to_open, Step::open, {}};
    }
    const bool all_done =
        std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.state == State::done; });
    if (all_done) return std::nullopt;
    // Also without a change: to see a stop, and files of other processes.
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

void DownloadQueue::set_state(Entry& entry, State state) {
  const std::lock_guard lock(mutex_);
  entry.state = state;
  entry.try_again = std::chrono::steady_clock::now() + poll_;
}

void DownloadQueue::carry_out(Work& work, HubClient& hub, const Logger& log) {
  auto& entry = *work.entry;
  switch (work.step) {
    case Step::open: {
      const auto opened = entry.file->open();
      if (opened == FileDownload::Opened::busy && !entry.told && !entry.file->holder().empty()) {
        entry.told = true;
        log.info(entry.file->file().path + ": " + entry.file->holder() + " is downloading it; waiting");
      }
      set_state(entry, opened == FileDownload::Opened::there  ? State::done
                       : opened == FileDownload::Opened::busy ? State::waiting
                                                              : State::active);
      return;
    }
    case Step::fetch:
      entry.file->fetch(hub, work.ranges);
      return;
    case Step::finish:
      set_state(entry, entry.file->finish() ? State::done : State::active);
      return;
  }
}

void DownloadQueue::fail() {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  failed_ = true;
}

void DownloadQueue::work(HubClient& hub, const Logger& log) {
  while (auto work = next()) {
    try {
      carry_out(*work, hub, log);
    } catch (const ClaimLost&) {
      // next_of_active() closes the file when no thread is at it any more.
      if (work->step != Step::fetch) set_state(*work->entry, State::active);
    } catch (...) {
      fail();
    }
    if (work->step == Step::fetch) {
      const std::lock_guard lock(mutex_);
      --work->entry->fetching;
    }
    changed_.notify_all();
  }
}

void DownloadQueue::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

std::size_t DownloadQueue::files_done() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.state == State::done; }));
}

}  // namespace fsdp
