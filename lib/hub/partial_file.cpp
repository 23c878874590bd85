#include "lib/hub/partial_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>

#include "lib/base/files/claim.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/free_space.hpp"

namespace fsdp {

void IntervalSet::add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= range.begin) {
      range = {before->first, std::max(range.end, before->second)};
      next = ends_.erase(before);
    }
  }
  while (next != ends_.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(range.begin, range.end);
}

void IntervalSet::subtract(ByteRange range) {
  for (const auto& cut : within(range)) {
    auto found = std::prev(ends_.upper_bound(cut.begin));
    const ByteRange whole{found->first, found->second};
    ends_.erase(found);
    if (whole.begin < cut.begin) ends_.emplace(whole.begin, cut.begin);
    if (cut.end < whole.end) ends_.emplace(cut.end, whole.end);
  }
}

bool IntervalSet::contains(ByteRange range) const {
  return range.begin >= range.end || run_end(range.begin) >= range.end;
}

std::uint64_t IntervalSet::run_end(std::uint64_t position) const {
  const auto next = ends_.upper_bound(position);
  if (next == ends_.begin()) return position;
  return std::max(position, std::prev(next)->second);
}

std::vector<ByteRange> IntervalSet::missing(ByteRange range) const {
  std::vector<ByteRange> gaps;
  auto at = range.begin;
  for (const auto& part : within(range)) {
    if (at < part.begin) gaps.push_back({at, part.begin});
    at = part.end;
  }
  if (at < range.end) gaps.push_back({at, range.end});
  return gaps;
}

std::vector<ByteRange> IntervalSet::within(ByteRange range) const {
  std::vector<ByteRange> parts;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin()) --next;
  for (; next != ends_.end() && next->first < range.end; ++next) {
    const ByteRange part{std::max(next->first, range.begin), std::min(next->second, range.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

std::vector<ByteRange> IntervalSet::ranges() const {
  std::vector<ByteRange> all;
  for (const auto& [begin, end] : ends_) all.push_back({begin, end});
  return all;
}

std::uint64_t IntervalSet::size() const {
  std::uint64_t sum = 0;
  for (const auto& [begin, end] : ends_) sum += end - begin;
  return sum;
}

namespace {

std::string first_line(const std::string& hash, std::uint64_t size_bytes) {
  return fmt::format("fsdp-partial 1 {} {}\n", hash, size_bytes);
}

/// Removes a number and the separator after it from the front of `text`. \return false when `text` does not match
template <typename Integer>
bool take_number(std::string_view& text, char separator, int base, Integer& out) {
  const auto end = text.find(separator);
  if (end == 0 || end == std::string_view::npos) return false;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, out, base);
  if (error != std::errc() || stop != text.data() + end) return false;
  text.remove_prefix(end + 1);
  return true;
}

/// \param line  includes its '\n'
std::optional<JournalEntry> parse_line(std::string_view line, std::uint64_t size_bytes) {
  JournalEntry entry;
  if (!take_number(line, ' ', 10, entry.range.begin) || !take_number(line, ' ', 10, entry.range.end)) return {};
  if (line.size() != 9 || !take_number(line, '\n', 16, entry.crc32)) return {};
  if (entry.range.begin >= entry.range.end || entry.range.end > size_bytes) return {};
  if (entry.range.size() > kLongestPieceBytes) return {};
  return entry;
}

namespace fs = std::filesystem;
constexpr std::uint64_t kReadBytes = 1 << 20;

fs::path part_path(const fs::path& work_directory, std::uint64_t generation) {
  return work_directory / ("part." + std::to_string(generation));
}

/// Generations of the parts in `work_directory`, in ascending order.
std::vector<std::uint64_t> part_generations(const fs::path& work_directory) {
  std::vector<std::uint64_t> found;
  std::error_code error;
  for (fs::directory_iterator entry(work_directory, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::uint64_t number = 0;
    const auto* last = name.data() + name.size();
    if (name.rfind("part.", 0) == 0 && std::from_chars(name.data() + 5, last, number).ptr == last) {
      found.push_back(number);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// True when `part` is a folder, its files (if present) are regular files with one name, and one user owns all of them.
/// \param only_mine  that user must be the current one
bool is_genuine(const fs::path& part, bool only_mine) {
  struct stat status {};
  if (::lstat(part.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  if (only_mine && status.st_uid != ::geteuid()) return false;
  const auto owner = status.st_uid;
  for (const auto* name : {"data", "journal"}) {
    if (::lstat((part / name).c_str(), &status) != 0) continue;
    if (!S_ISREG(status.st_mode) || status.st_nlink > 1 || status.st_uid != owner) return false;
  }
  return true;
}

IntervalSet journalled(const fs::path& part, const std::string& hash, std::uint64_t size_bytes) {
  IntervalSet set;
  if (!is_genuine(part, false)) return set;
  for (const auto& entry : read_journal(part / "journal", hash, size_bytes)) set.add(entry.range);
  return set;
}

/// Calls `use` for each piece of `part` whose bytes still match the journal's checksum.
void for_each_sound_piece(const fs::path& part, const std::string& hash, std::uint64_t size_bytes,
                          const std::function<bool()>& stop,
                          const std::function<void(const JournalEntry&, std::span<const std::byte>)>& use) {
  // A link could expose a private file in this folder, and reading a pipe would never end.
  if (!is_genuine(part, false)) return;
  const auto entries = read_journal(part / "journal", hash, size_bytes);
  if (entries.empty()) return;
  File data;
  try {
    data = File::open_read_nofollow(part / "data");
  } catch (const IoError&) {
    return;  // missing, or readable only for another user
  }
  std::vector<std::byte> buffer;
  const auto data_bytes = data.size_bytes();
  for (const auto& entry : entries) {
    if (stop && stop()) return;
    if (entry.range.end > data_bytes) continue;
    buffer.resize(entry.range.size());
    data.read_at(entry.range.begin, buffer);
    if (crc32_of(buffer) == entry.crc32) use(entry, buffer);
  }
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::vector<JournalEntry> read_journal(const std::filesystem::path& path, const std::string& hash,
                                       std::uint64_t size_bytes) {
  std::string text;
  try {
    text = read_text(File::open_read_nofollow(path));
  } catch (const Error&) {
    return {};  // missing, or a link or special file that another user may have planted
  }
  const auto head = first_line(hash, size_bytes);
  if (text.compare(0, head.size(), head) != 0) return {};
  std::vector<JournalEntry> entries;
  for (auto begin = head.size(); begin < text.size();) {
    const auto end = text.find('\n', begin);
    if (end == std::string::npos) break;
    if (const auto entry = parse_line(std::string_view(text).substr(begin, end + 1 - begin), size_bytes)) {
      entries.push_back(*entry);
    }
    begin = end + 1;
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.range.begin < b.range.begin; });
  return entries;
}

PartialJournal::PartialJournal(const std::filesystem::path& path, const std::string& hash, std::uint64_t size_bytes)
    : first_line_(first_line(hash, size_bytes)), file_(File::open_append_private(path)) {
  std::string head(std::min<std::uint64_t>(first_line_.size(), file_.size_bytes()), '\0');
  file_.read_at(0, std::as_writable_bytes(std::span(head)));
  if (head != first_line_) {
    clear();
    return;
  }
  // End a line that a crash truncated, so that the next entry starts a new line.
  char last = 0;
  file_.read_at(file_.size_bytes() - 1, std::as_writable_bytes(std::span(&last, 1)));
  if (last != '\n') file_.write("\n");
}

void PartialJournal::append(const JournalEntry& entry) {
  const auto line = fmt::format("{} {} {:08x}\n", entry.range.begin, entry.range.end, entry.crc32);
  const std::lock_guard lock(mutex_);
  file_.write(line);
}

void PartialJournal::clear() {
  const std::lock_guard lock(mutex_);
  file_.truncate(0);
  file_.write(first_line_);
}

PartialFile::PartialFile(fs::path work_directory, std::uint64_t generation, std::string hash, std::uint64_t size_bytes,
                         const std::function<bool()>& stop)
    : work_directory_(std::move(work_directory)),
      hash_(std::move(hash)),
      size_bytes_(size_bytes),
      part_(part_path(work_directory_, generation)),
      data_path_(part_ / "data"),
      hasher_(hash_kind(hash_), size_bytes) {
  adopt_by_rename(generation);
  open_files();
  check_own_journal(stop);
  copy_from_others(stop);
  adopted_bytes_ = present_.size();
  advance_hash();
}

void PartialFile::adopt_by_rename(std::uint64_t generation) {
  std::error_code error;
  // The generation is new, so another user must have created an entry of that name.
  if (fs::symlink_status(part_, error).type() != fs::file_type::not_found && !is_genuine(part_, true)) {
    fs::remove_all(part_, error);
  }
  error.clear();
  std::uint64_t best = 0, best_bytes = 0;
  for (const auto other : part_generations(work_directory_)) {
    if (other >= generation || owner_state(work_directory_, other) != OwnerState::gone) continue;
    if (!is_genuine(part_path(work_directory_, other), true)) continue;  // another user's part is copied instead
    const auto bytes = journalled(part_path(work_directory_, other), hash_, size_bytes_).size();
    if (bytes > best_bytes) best = other, best_bytes = bytes;
  }
  if (best != 0) fs::rename(part_path(work_directory_, best), part_, error);
  if (error && !is_genuine(part_, true))
    throw IoError(part_.string() + ": cannot take over a partial download: " + error.message());
}

void PartialFile::open_files() {
  make_directories(part_);
  if (!is_genuine(part_, false)) throw IoError(part_.string() + ": another user put this here; remove it");
  data_ = File::open_update_private(data_path_);
  reserve_space(data_, size_bytes_);
  journal_ = std::make_unique<PartialJournal>(part_ / "journal", hash_, size_bytes_);
}

void PartialFile::check_own_journal(const std::function<bool()>& stop) {
  for_each_sound_piece(part_, hash_, size_bytes_, stop, [&](const JournalEntry& entry, auto bytes) {
    present_.add(entry.range);
    if (entry.range.begin == hashed_bytes_) {
      hasher_.update(bytes);
      hashed_bytes_ = entry.range.end;
    }
  });
}

void PartialFile::copy_from_others(const std::function<bool()>& stop) {
  for (const auto other : part_generations(work_directory_)) {
    const auto part = part_path(work_directory_, other);
    if (part == part_) continue;
    for_each_sound_piece(part, hash_, size_bytes_, stop, [&](const JournalEntry& entry, auto bytes) {
      for (const auto& gap : present_.missing(entry.range)) {
        store(gap.begin, bytes.subspan(gap.begin - entry.range.begin, gap.size()));
      }
    });
    std::error_code ignored;
    if (!(stop && stop())) fs::remove_all(part, ignored);
  }
}

void PartialFile::store(std::uint64_t begin, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const ByteRange range{begin, begin + bytes.size()};
  data_.write_at(begin, bytes);
  journal_->append({range, crc32_of(bytes)});
  {
    const std::lock_guard lock(mutex_);
    present_.add(range);
  }
  advance_hash();
}

void PartialFile::advance_hash() {
  // One thread hashes at a time; the others return and leave their bytes to a later call.
  const std::unique_lock hash_lock(hash_mutex_, std::try_to_lock);
  if (hash_lock.owns_lock()) hash_present_bytes();
}

void PartialFile::hash_present_bytes() {
  hash_buffer_.resize(std::min(kReadBytes, size_bytes_));
  while (true) {
    std::uint64_t end = 0;
    {
      const std::lock_guard lock(mutex_);
      end = present_.run_end(hashed_bytes_);
    }
    if (end == hashed_bytes_) return;
    const auto piece = std::span(hash_buffer_).first(std::min<std::uint64_t>(hash_buffer_.size(), end - hashed_bytes_));
    data_.read_at(hashed_bytes_, piece);
    hasher_.update(piece);
    hashed_bytes_ += piece.size();
  }
}

std::optional<ByteRange> PartialFile::take(std::uint64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& gap : present_.missing({0, size_bytes_})) {
    for (const auto& free : given_.missing(gap)) {
      // Ends at a multiple of max_bytes, so that the ranges of a resumed file stay aligned.
      const ByteRange range{free.begin, std::min(free.end, (free.begin / max_bytes + 1) * max_bytes)};
      given_.add(range);
      return range;
    }
  }
  return std::nullopt;
}

std::vector<ByteRange> PartialFile::take_all() {
  const std::lock_guard lock(mutex_);
  if (!given_.empty()) return {};
  const auto all = present_.missing({0, size_bytes_});
  for (const auto& range : all) given_.add(range);
  return all;
}

void PartialFile::give_back(const std::vector<ByteRange>& ranges) {
  const std::lock_guard lock(mutex_);
  for (const auto& range : ranges) given_.subtract(range);
}

std::uint64_t PartialFile::present_bytes() const {
  const std::lock_guard lock(mutex_);
  return present_.size();
}

bool PartialFile::complete() const { return present_bytes() == size_bytes_; }

std::string PartialFile::finish() {
  data_.sync();
  struct stat opened {
  }, there{};
  if (::fstat(data_.fd(), &opened) != 0 || ::lstat(data_path_.c_str(), &there) != 0 || opened.st_ino != there.st_ino ||
      opened.st_dev != there.st_dev || opened.st_nlink > 1) {
    throw IoError(data_path_.string() + ": another process replaced or linked it; run the same command again");
  }
  const std::lock_guard lock(hash_mutex_);
  hash_present_bytes();
  return hasher_.finish();
}

void PartialFile::start_over() {
  const std::scoped_lock lock(hash_mutex_, mutex_);
  journal_->clear();
  present_ = {};
  given_ = {};
  adopted_bytes_ = 0;
  hasher_ = ContentHash(hash_kind(hash_), size_bytes_);
  hashed_bytes_ = 0;
}

std::uint64_t estimate_partial_bytes(const fs::path& work_directory, const std::string& hash,
                                     std::uint64_t size_bytes) {
  IntervalSet all;
  for (const auto generation : part_generations(work_directory)) {
    for (const auto& range : journalled(part_path(work_directory, generation), hash, size_bytes).ranges()) {
      all.add(range);
    }
  }
  return all.size();
}

}  // namespace fsdp
