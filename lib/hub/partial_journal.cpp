#include "lib/hub/partial_journal.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

std::string first_line(const std::string& hash, std::uint64_t size_bytes) {
  return fmt::format("fsdp-partial 1 {} {}\n", hash, size_bytes);
}

/// Takes a number and the separator after it off the front of `text`.
template <typename Integer>
bool take_number(std::string_view& text, char separator, int base, Integer& out) {
  const auto end = text.find(separator);
  if (end == 0 || end == std::string_view::npos) return false;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, out, base);
  if (error != std::errc() || stop != text.data() + end) return false;
  text.remove_prefix(end + 1);
  return true;
}

/// \param line  with its '\n'
std::optional<JournalEntry> parse_line(std::string_view line, std::uint64_t size_bytes) {
  JournalEntry entry;
  if (!take_number(line, ' ', 10, entry.range.begin) || !take_number(line, ' ', 10, entry.range.end)) return {};
  if (line.size() != 9 || !take_number(line, '\n', 16, entry.crc32)) return {};
  if (entry.range.begin >= entry.range.end || entry.range.end > size_bytes) return {};
  if (entry.range.size() > kLongestPieceBytes) return {};
  return entry;
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
    return {};  // not there, or put there by someone: counts for nothing
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
  // A line that a crash cut off must not swallow the next one.
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

}  // namespace fsdp
