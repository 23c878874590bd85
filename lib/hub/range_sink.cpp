#include "lib/hub/range_sink.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

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

}  // namespace

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

}  // namespace fsdp
