#include "lib/tokenizers/unicode/code_points.hpp"

#include <algorithm>
#include <cstddef>

#include "lib/tokenizers/unicode/unicode_tables.hpp"

namespace fsdp {
namespace {

constexpr char32_t kLast = 0x10ffff;

/// The characters of the runs for which `belongs` is true.
template <typename Belongs>
CodePoints of_runs(Belongs belongs) {
  const auto runs = unicode_runs();
  std::vector<CodePoints::Range> ranges;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!belongs(runs[i])) continue;
    const char32_t end = i + 1 < runs.size() ? runs[i + 1] >> kUnicodeRunBits : kLast + 1;
    ranges.push_back({runs[i] >> kUnicodeRunBits, end - 1});
  }
  return CodePoints(std::move(ranges));
}

}  // namespace

CodePoints::CodePoints(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const auto& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

std::optional<CodePoints> CodePoints::with_property(std::string_view name) {
  const auto scripts = unicode_scripts();
  const auto script = std::find(scripts.begin(), scripts.end(), name);
  if (script != scripts.end()) {
    std::vector<Range> ranges;
    for (const auto& run : unicode_script_runs()) {
      if (run.script == script - scripts.begin()) ranges.push_back({run.first, run.last});
    }
    return CodePoints(std::move(ranges));
  }
  if (name.empty()) return {};
  auto found = of_runs([&](std::uint32_t run) {
    const auto category = unicode_categories()[run & kUnicodeCategory];
    return category == name || category.substr(0, 1) == name;
  });
  return found.ranges_.empty() ? std::nullopt : std::optional(std::move(found));
}

CodePoints CodePoints::white_space() {
  return CodePoints({{0x9, 0xd},
                     {0x20, 0x20},
                     {0x85, 0x85},
                     {0xa0, 0xa0},
                     {0x1680, 0x1680},
                     {0x2000, 0x200a},
                     {0x2028, 0x2029},
                     {0x202f, 0x202f},
                     {0x205f, 0x205f},
                     {0x3000, 0x3000}});
}

CodePoints CodePoints::word_characters() {
  // Circled and squared letters are alphabetic, although they are no letters by category.
  CodePoints all({{0x200c, 0x200d}, {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}});
  for (const auto* category : {"L", "M", "Nd", "Nl", "Pc"}) all = all.joined(*with_property(category));
  return all;
}

CodePoints CodePoints::punctuation() {
  const CodePoints ascii({{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}});
  return of_runs([](std::uint32_t run) { return (run & kPunctuationIn8) != 0; }).joined(ascii);
}

CodePoints CodePoints::numbers() {
  const CodePoints of_unicode_17({{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}});
  return with_property("N")->joined(of_unicode_17);
}

CodePoints CodePoints::newer_than_unicode_9() {
  return of_runs([](std::uint32_t run) { return (run & kAfterUnicode9) != 0; });
}

bool CodePoints::contains(char32_t code) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                      [](char32_t wanted, const Range& range) { return wanted < range.first; });
  return after != ranges_.begin() && code <= std::prev(after)->last;
}

CodePoints CodePoints::joined(const CodePoints& other) const {
  auto ranges = ranges_;
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePoints(std::move(ranges));
}

CodePoints CodePoints::inverted() const {
  CodePoints others;
  char32_t next = 0;
  for (const auto& range : ranges_) {
    if (range.first > next) others.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) others.ranges_.push_back({next, kLast});
  return others;
}

}  // namespace fsdp
