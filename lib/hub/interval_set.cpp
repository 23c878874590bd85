#include "lib/hub/interval_set.hpp"

#include <algorithm>
#include <iterator>

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

}  // namespace fsdp
