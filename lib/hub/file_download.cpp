#include "lib/hub/file_download.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_failure.hpp"

namespace fsdp {
namespace {

struct ContentRange {
  std::uint64_t first = 0;
  std::optional<std::uint64_t> total;  ///< nullopt for '*'
};

bool take_number(std::string_view& text, std::uint64_t& out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return error == std::errc();
}

bool take_char(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

/// Parses "bytes FIRST-LAST/TOTAL" (RFC 9110, section 14.4).
std::optional<ContentRange> content_range(std::string_view text) {
  ContentRange range;
  std::uint64_t last = 0, total = 0;
  if (text.substr(0, 6) != "bytes ") return std::nullopt;
  text.remove_prefix(6);
  if (!take_number(text, range.first) || !take_char(text, '-') || !take_number(text, last) || !take_char(text, '/')) {
    return std::nullopt;
  }
  if (text == "*") return range;
  if (!take_number(text, total) || !text.empty()) return std::nullopt;
  range.total = total;
  return range;
}

// Longest time that bytes are buffered, so that a killed process on a slow connection loses little.
constexpr auto kLongestHold = std::chrono::seconds(2);

constexpr auto kWindow = std::chrono::seconds(15);

namespace fs = std::filesystem;
constexpr int kMostWrongContents = 2;

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

}  // namespace

void TransferRate::sample(Clock::time_point now, std::uint64_t received_bytes) {
  samples_.push_back({now, received_bytes});
  while (samples_.size() > 2 && now - samples_.front().time > kWindow) samples_.pop_front();
}

double TransferRate::rate() const {
  if (samples_.size() < 2) return 0;
  const auto seconds = std::chrono::duration<double>(samples_.back().time - samples_.front().time).count();
  return seconds > 0 ? static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds : 0;
}

std::string TransferRate::line(std::uint64_t present_bytes) const {
  const auto total = static_cast<double>(total_bytes_);
  const auto present = static_cast<double>(std::min(present_bytes, total_bytes_));
  auto text = fmt::format("{} of {}, {:.0f} %", format_bytes(present), format_bytes(total),
                          total > 0 ? std::min(99.0, 100 * present / total) : 100.0);
  const auto speed = rate();
  text += fmt::format(", {}/s", format_bytes(speed));
  if (speed > 0) text += fmt::format(", {} left", format_duration((total - present) / speed));
  return text;
}

RangeSink::RangeSink(const Wanted& wanted, IntervalSet& left, std::uint64_t piece_bytes, Store store)
    : wanted_(wanted), left_(left), piece_bytes_(piece_bytes), store_(std::move(store)) {}

bool RangeSink::reject(const std::string& why) {
  complaint_ = why;
  return false;
}

bool RangeSink::head(const HttpHead& head) {
  if (head.status != 200 && head.status != 206) return true;
  const auto& encoding = head.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") return reject("the server sends the file encoded as " + encoding);
  if (head.status == 206) {
    const auto range = content_range(head.header("content-range"));
    if (!range || range->first != wanted_.first_byte) {
      return reject("the server answers with another range (Content-Range: " + head.header("content-range") +
                    ") than asked for, from byte " + std::to_string(wanted_.first_byte));
    }
    if (range->total && *range->total != wanted_.file_bytes) {
      return reject("the server says the file has " + std::to_string(*range->total) + " bytes, the hub lists " +
                    std::to_string(wanted_.file_bytes));
    }
    position_ = range->first;
  } else {
    if (!wanted_.accept_whole_file) {
      range_ignored_ = true;
      return false;
    }
    const auto& length = head.header("content-length");
    if (!length.empty() && length != std::to_string(wanted_.file_bytes)) {
      return reject("the server says the file has " + length + " bytes, the hub lists " +
                    std::to_string(wanted_.file_bytes));
    }
    position_ = 0;
  }
  taking_ = true;
  return true;
}

bool RangeSink::body(std::span<const std::byte> bytes) {
  if (!taking_) return true;
  const ByteRange arrived{position_, position_ + bytes.size()};
  for (const auto& part : left_.within(arrived)) {
    take(part.begin, bytes.subspan(part.begin - arrived.begin, part.size()));
  }
  position_ = arrived.end;
  return !left_.empty();
}

void RangeSink::take(std::uint64_t begin, std::span<const std::byte> bytes) {
  if (!held_.empty() && held_begin_ + held_.size() != begin) flush();
  if (held_.empty()) {
    held_begin_ = begin;
    held_since_ = std::chrono::steady_clock::now();
  }
  held_.insert(held_.end(), bytes.begin(), bytes.end());
  left_.subtract({begin, begin + bytes.size()});
  if (held_.size() >= piece_bytes_ || std::chrono::steady_clock::now() - held_since_ > kLongestHold) flush();
}

void RangeSink::flush() {
  if (held_.empty()) return;
  store_(held_begin_, held_);
  stored_bytes_ += held_.size();
  held_.clear();
}

FileDownload::FileDownload(DownloadContext& context, std::vector<RemoteFile> files)
    : context_(context),
      files_(std::move(files)),
      watch_(context.store.work_directory(files_.front()), context.options.takeover_after) {}

bool FileDownload::content_is_right(const RemoteFile& wanted) const {
  const auto& store = context_.store;
  const auto path = store.content(wanted);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (store.is_verified(wanted)) return true;
  if (size_of(path) == wanted.size_bytes) {
    const auto hash = hash_file(path, hash_kind(wanted.hash()), context_.stop);
    if (hash.empty()) throw DownloadStopped();
    if (hash == wanted.hash()) {
      store.set_verified(wanted);
      return true;
    }
  }
  std::error_code ignored;
  fs::remove(store.ready_mark(context_.commit), ignored);
  context_.log.warning(path.string() + ": does not hold what the hub says of " + wanted.path + "; fetching it again");
  return false;
}

bool FileDownload::find_content() {
  const auto right = std::find_if(files_.begin(), files_.end(), [&](const auto& one) { return content_is_right(one); });
  if (right == files_.end()) return false;
  add_to_snapshot(context_.store.content(*right));
  return true;
}

void FileDownload::add_to_snapshot(const fs::path& source) {
  for (const auto& one : files_) {
    context_.store.add_to_snapshot(context_.commit, one, source);
    context_.store.set_verified(one);
  }
}

FileDownload::Opened FileDownload::open() {
  const auto there = [&] {
    if (!find_content()) return false;
    context_.present_bytes += file().size_bytes - counted_bytes_;
    counted_bytes_ = file().size_bytes;
    return true;
  };
  if (there()) return Opened::there;
  context_.store.refuse_links(context_.store.work_directory(file()));
  const auto generation = watch_.try_take();
  if (!generation) return Opened::busy;
  claim_ = std::make_shared<Claim>(context_.store.work_directory(file()), *generation);
  context_.heartbeat.add(claim_);
  // The previous owner may have finished between the first check and the claim.
  if (there()) {
    claim_->end();
    claim_.reset();
    return Opened::there;
  }
  partial_ =
      std::make_unique<PartialFile>(claim_->directory(), *generation, file().hash(), file().size_bytes, context_.stop);
  if (context_.stop && context_.stop()) throw DownloadStopped();
  const auto adopted = partial_->adopted_bytes();
  context_.present_bytes += adopted - counted_bytes_;
  counted_bytes_ = adopted;
  if (adopted > 0) {
    context_.log.info(file().path + ": goes on with " + format_bytes(static_cast<double>(adopted)) + " of " +
                      format_bytes(static_cast<double>(file().size_bytes)) + " from an earlier run");
  }
  return Opened::open;
}

std::vector<ByteRange> FileDownload::take() {
  if (ranges_ignored_) return partial_->take_all();
  const auto range = partial_->take(context_.options.part_bytes);
  return range ? std::vector{*range} : std::vector<ByteRange>{};
}

std::string FileDownload::url(const HubClient& hub) {
  const std::lock_guard lock(url_mutex_);
  return signed_url_.empty() ? hub.file_url(context_.options.repo, context_.commit, file().path) : signed_url_;
}

void FileDownload::forget_url(const std::string& url) {
  const std::lock_guard lock(url_mutex_);
  if (signed_url_ == url) signed_url_.clear();
}

struct FileDownload::Attempt {
  bool progress = false;
  bool range_ignored = false;
  bool address_expired = false;
  std::string reason;  ///< why bytes are missing; "" when none are
  bool wrong_answer = false;
  bool ended_early = false;
  std::optional<std::chrono::seconds> asked;
};

FileDownload::Attempt FileDownload::attempt(HubClient& hub, IntervalSet& left) {
  const auto ranges = left.ranges();
  const auto size = file().size_bytes;
  const bool whole = ranges.front().begin == 0 && ranges.back().end == size;
  RangeSink sink({size, ranges.front().begin, ranges_ignored_ || whole}, left, context_.options.piece_bytes,
                 [&](std::uint64_t begin, std::span<const std::byte> bytes) {
                   if (claim_->lost()) throw ClaimLost();
                   partial_->store(begin, bytes);
                   context_.received_bytes += bytes.size();
                   context_.present_bytes += bytes.size();
                 });
  std::vector<std::string> headers;
  if (!whole) {
    headers.push_back("Range: bytes=" + std::to_string(ranges.front().begin) + "-" +
                      std::to_string(ranges.back().end - 1));
  }
  Attempt result;
  const auto from = url(hub);
  HubAnswer answer;
  try {
    answer = hub.get(from, headers, sink);
  } catch (const TransferCut& cut) {
    result.reason = cut.what();
  }
  sink.flush();
  result.progress = sink.stored_bytes() > 0;
  result.range_ignored = sink.range_ignored();
  if (!result.reason.empty() || result.range_ignored) return result;
  if (sink.complaint().empty()) {
    judge(hub, answer, left.size(), result);
  } else {
    result.reason = url_host(answer.url) + ": " + sink.complaint();
    result.wrong_answer = true;
  }
  if (!result.reason.empty() && !result.ended_early) forget_url(from);
  return result;
}

void FileDownload::judge(const HubClient& hub, const HubAnswer& answer, std::uint64_t left_bytes, Attempt& result) {
  const auto status = answer.head.status;
  const auto from = url_host(answer.url) + ": ";
  const bool elsewhere = !hub.is_endpoint(answer.url);
  if (status == 200 || status == 206) {
    if (elsewhere) {
      const std::lock_guard lock(url_mutex_);
      signed_url_ = answer.url;
    }
    result.ended_early = left_bytes > 0;
    if (result.ended_early) result.reason = from + "the answer ended " + std::to_string(left_bytes) + " bytes early";
  } else if (worth_retrying(status) || status == 416) {
    result.reason = from + "status " + std::to_string(status);
    result.asked = wait_asked_by(answer.head);
  } else if (elsewhere) {
    result.reason = from + "status " + std::to_string(status) + " at the address that the hub gave";
    result.address_expired = true;
  } else {
    throw hub_failure(answer.head, {context_.options.repo, context_.commit, file().path}, context_.settings);
  }
}

void FileDownload::fetch(HubClient& hub, const std::vector<ByteRange>& ranges) {
  struct GiveBack {
    PartialFile& partial;
    const std::vector<ByteRange>& ranges;
    ~GiveBack() { partial.give_back(ranges); }
  } give_back{*partial_, ranges};
  IntervalSet left;
  for (const auto& range : ranges) left.add(range);
  Backoff backoff(context_.options.retries, context_.stop);
  bool address_renewed = false;
  while (!left.empty()) {
    const auto result = attempt(hub, left);
    if (context_.stop && context_.stop()) throw DownloadStopped();
    if (result.range_ignored) {
      ranges_ignored_ = true;
      return;
    }
    if (result.reason.empty()) continue;
    if (result.progress) backoff.progress();
    // A signed URL normally expires after an hour. Request a new one without waiting, but only once in a row.
    const bool at_once = result.address_expired && !address_renewed;
    address_renewed = result.address_expired && !result.progress;
    if (at_once) continue;
    context_.log.debug(file().path + ": " + result.reason);
    if (!backoff.wait(result.asked)) {
      throw Error(result.wrong_answer ? ExitCode::bad_input : ExitCode::failed,
                  file().path + ": gave up after " + std::to_string(backoff.failures()) +
                      " attempts: " + result.reason + ". What arrived is kept: run the same command to go on");
    }
  }
}

bool FileDownload::finish() {
  const auto hash = partial_->finish();
  if (hash != file().hash()) {
    context_.present_bytes -= file().size_bytes;
    counted_bytes_ = 0;
    partial_->start_over();
    forget_url(signed_url_);
    const auto text = file().path + ": what was sent has the hash " + hash + ", the hub says " + file().hash();
    if (++wrong_contents_ == kMostWrongContents) {
      throw FormatError(text + "; " + std::to_string(kMostWrongContents) +
                        " downloads were wrong, nothing of them was kept. Try later or another HF_ENDPOINT");
    }
    context_.log.warning(text + "; fetching it again");
    return false;
  }
  if (claim_->lost()) throw ClaimLost();
  context_.store.publish(partial_->data_path(), file());
  add_to_snapshot(context_.store.content(file()));
  claim_->end();
  partial_.reset();
  claim_.reset();
  return true;
}

void FileDownload::close() {
  if (partial_) counted_bytes_ = partial_->present_bytes();
  partial_.reset();
  claim_.reset();
}

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
    // The timeout lets this thread notice a stop and files that other processes completed.
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
      // next_of_active() closes the file once no thread fetches it.
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
