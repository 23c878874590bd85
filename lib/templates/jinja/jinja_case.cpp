#include "lib/templates/jinja/jinja_case.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "lib/base/types/index.hpp"

namespace fsdp::jinja {
namespace {

struct Range {
  char32_t first, last;
};

/// Letters by use and not by category: Other_Uppercase of Unicode.
constexpr std::array kOtherUpper{Range{0x2160, 0x216f}, Range{0x24b6, 0x24cf}, Range{0x1f130, 0x1f149},
                                 Range{0x1f150, 0x1f169}, Range{0x1f170, 0x1f189}};
/// Other_Lowercase.
constexpr std::array kOtherLower{
    Range{0xaa, 0xaa},       Range{0xba, 0xba},       Range{0x2b0, 0x2b8},     Range{0x2c0, 0x2c1},
    Range{0x2e0, 0x2e4},     Range{0x345, 0x345},     Range{0x37a, 0x37a},     Range{0x10fc, 0x10fc},
    Range{0x1d2c, 0x1d6a},   Range{0x1d78, 0x1d78},   Range{0x1d9b, 0x1dbf},   Range{0x2071, 0x2071},
    Range{0x207f, 0x207f},   Range{0x2090, 0x209c},   Range{0x2170, 0x217f},   Range{0x24d0, 0x24e9},
    Range{0x2c7c, 0x2c7d},   Range{0xa69c, 0xa69d},   Range{0xa770, 0xa770},   Range{0xa7f2, 0xa7f4},
    Range{0xa7f8, 0xa7f9},   Range{0xab5c, 0xab5f},   Range{0xab69, 0xab69},   Range{0x10780, 0x10780},
    Range{0x10783, 0x10785}, Range{0x10787, 0x107b0}, Range{0x107b2, 0x107ba}, Range{0x1e030, 0x1e06d}};
/// Signs within words, which are passed over like marks where a sigma is last (Word_Break MidLetter, MidNumLet).
constexpr std::u32string_view kWithinWords =
    U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a";

template <std::size_t Count>
bool is_in(const std::array<Range, Count>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& one) { return one.first <= c && c <= one.last; });
}

utf8proc_int32_t code(char32_t c) { return static_cast<utf8proc_int32_t>(c); }
char32_t small(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(code(c))); }
char32_t capital(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(code(c))); }
char32_t title_letter(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(code(c))); }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

bool is_passed_over(char32_t c) {
  switch (utf8proc_category(code(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return kWithinWords.find(c) != kWithinWords.npos;
  }
}

std::u32string folded(char32_t c) {
  std::array<utf8proc_int32_t, 4> all;
  const auto count = utf8proc_decompose_char(code(c), all.data(), static_cast<utf8proc_ssize_t>(all.size()),
                                             UTF8PROC_CASEFOLD, nullptr);
  if (count < 1 || count > static_cast<utf8proc_ssize_t>(all.size())) return {c};
  return {all.begin(), all.begin() + count};
}

/// Capital letters for a small one, of which Unicode's SpecialCasing.txt has several if its folding has.
std::u32string upper(char32_t c) {
  auto all = folded(c);
  if (all.size() == 1 || is_upper(c)) return {capital(c)};
  std::transform(all.begin(), all.end(), all.begin(), capital);
  return all;
}

/// Letters for the beginning of a word.
std::u32string title(char32_t c) {
  constexpr char32_t kSharpS = 0xdf, kIota = 0x3b9, kIotaBelow = 0x345;
  auto all = folded(c);
  if (all.size() == 1 || is_upper(c) || is_title(c) || (c != kSharpS && title_letter(c) != c)) return {title_letter(c)};
  const auto first = std::find_if(all.begin(), all.end(), [](char32_t one) { return title_letter(one) != one; });
  if (first != all.end()) *first = title_letter(*first);
  if (all.back() == kIota) all.back() = kIotaBelow;
  return all;
}

/// The small letters for character i of a text.
std::u32string lower_at(const std::u32string& text, std::size_t i) {
  constexpr char32_t kSigma = 0x3a3, kFinalSigma = 0x3c2, kDottedI = 0x130;
  if (text[i] == kDottedI) return U"i\u0307";
  if (text[i] != kSigma) return {small(text[i])};
  const auto before = std::find_if_not(text.rend() - static_cast<std::ptrdiff_t>(i), text.rend(), is_passed_over);
  const auto after = std::find_if_not(iterator_at(text, i) + 1, text.end(), is_passed_over);
  const bool is_last = before != text.rend() && is_cased(*before) && (after == text.end() || !is_cased(*after));
  return {is_last ? kFinalSigma : small(kSigma)};
}

}  // namespace

bool is_upper(char32_t c) { return utf8proc_category(code(c)) == UTF8PROC_CATEGORY_LU || is_in(kOtherUpper, c); }
bool is_lower(char32_t c) { return utf8proc_category(code(c)) == UTF8PROC_CATEGORY_LL || is_in(kOtherLower, c); }
bool is_title(char32_t c) { return utf8proc_category(code(c)) == UTF8PROC_CATEGORY_LT; }

std::u32string upper(const std::u32string& text) {
  std::u32string out;
  for (const auto c : text) out += upper(c);
  return out;
}

std::u32string lower(const std::u32string& text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) out += lower_at(text, i);
  return out;
}

std::u32string capitalize(const std::u32string& text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) out += i == 0 ? title(text[i]) : lower_at(text, i);
  return out;
}

std::u32string title(const std::u32string& text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i)
    out += i > 0 && is_cased(text[i - 1]) ? lower_at(text, i) : title(text[i]);
  return out;
}

std::u32string swapcase(const std::u32string& text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i)
    out += is_upper(text[i]) ? lower_at(text, i) : is_lower(text[i]) ? upper(text[i]) : std::u32string{text[i]};
  return out;
}

std::u32string casefold(const std::u32string& text) {
  std::u32string out;
  for (const auto c : text) out += folded(c);
  return out;
}

}  // namespace fsdp::jinja
