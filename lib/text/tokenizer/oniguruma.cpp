#include "lib/text/tokenizer/oniguruma.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "lib/base/error.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::string_view kProperties[] = {
    "L",        "Lu",       "Ll",       "Lt",       "Lm",         "Lo",      "M",      "Mn",     "Mc",
    "Me",       "N",        "Nd",       "Nl",       "No",         "P",       "Pc",     "Pd",     "Ps",
    "Pe",       "Pi",       "Pf",       "Po",       "S",          "Sm",      "Sc",     "Sk",     "So",
    "Z",        "Zs",       "Zl",       "Zp",       "C",          "Cc",      "Cf",     "Co",     "Han",
    "Thai",     "Hangul",   "Latin",    "Lao",      "Greek",      "Khmer",   "Arabic", "Hebrew", "Hiragana",
    "Katakana", "Cyrillic", "Armenian", "Georgian", "Devanagari", "Bengali", "Tamil"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    if (utf8_valid_prefix(pattern_) != pattern_.size()) refuse(pattern_.size(), "is not valid UTF-8");
    while (at_ < pattern_.size()) {
      switch (pattern_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '{':
          counted();
          break;
        case '^':
        case '$':
        case '.':
          refuse(1, "is not supported");
          break;
        default:
          out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::size_t length, const std::string& problem) const {
    throw FormatError(where_ + ": '" + std::string(pattern_.substr(at_, std::min<std::size_t>(length, 60))) +
                      "' at byte " + std::to_string(at_) + " of the pattern " + problem);
  }

  void copy(std::size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }

  void escape(bool in_class) {
    const char next = peek(1);
    if (next == 's') {
      if (in_class && ((peek(2) == '-' && peek(3) != ']') || out_.ends_with('-'))) refuse(4, "is no range");
      out_ += in_class ? std::string(kSpace) : "[" + std::string(kSpace) + "]";
      at_ += 2;
    } else if (next == 'S' && !in_class) {
      out_ += "[^" + std::string(kSpace) + "]";
      at_ += 2;
    } else if (next == 'p' || next == 'P') {
      property();
    } else if (next == 'x' && peek(2) == '{') {
      const std::size_t end = pattern_.find('}', at_);
      if (end == pattern_.npos || end - at_ > 11) refuse(8, "is no character");
      copy(end + 1 - at_);
    } else if (next == 'r' || next == 'n' || next == 't' || next == 'f' || next == 'd') {
      copy(2);
    } else if (next > ' ' && next < 0x7F && !is_letter(next) && !is_digit(next)) {
      copy(2);
    } else {
      refuse(2, "is not supported");
    }
  }

  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == pattern_.npos) refuse(4, "is no property in braces");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    if (std::find(std::begin(kProperties), std::end(kProperties), name) == std::end(kProperties)) {
      refuse(end + 1 - at_, "is not a supported property");
    }
    copy(end + 1 - at_);
  }

  void character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse(1, "opens a class and is not supported");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '\\') {
        escape(true);
      } else if (pattern_[at_] == '[' || (pattern_[at_] == '&' && peek(1) == '&')) {
        refuse(2, "inside a class is not supported");
      } else {
        copy(1);
      }
    }
    if (at_ == pattern_.size()) refuse(1, "ends inside a class");
    copy(1);
  }

  /// Where case is ignored, Oniguruma takes one character for the two that it folds to ("ß" for "ss"), PCRE2 does not.
  void refuse_folded_pairs() const {
    std::size_t end = at_ + 1;
    for (int depth = 1; end < pattern_.size() && depth > 0; ++end) {
      if (pattern_[end] == '(') ++depth;
      if (pattern_[end] == ')') --depth;
    }
    const auto inside = pattern_.substr(at_, end - at_);
    for (std::size_t i = 0; i + 1 < inside.size(); ++i) {
      const std::string pair{static_cast<char>(inside[i] | 0x20), static_cast<char>(inside[i + 1] | 0x20)};
      if (pair == "ss" || pair == "ff" || pair == "fi" || pair == "fl" || pair == "st")
        refuse(inside.size(), "ignores the case of '" + pair + "', which is a single character too");
    }
  }

  void group() {
    if (peek(1) == '*') refuse(2, "is not supported");
    if (peek(1) != '?') return copy(1);
    if (peek(2) == 'i') refuse_folded_pairs();
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (pattern_.substr(at_).starts_with(opening)) return copy(opening.size());
    }
    refuse(4, "is not a supported group");
  }

  /// {n}, {n,} or {n,m}; what may follow them means different things in the two syntaxes.
  void counted() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    if (end == at_ + 1) refuse(4, "is no repetition");
    if (end < pattern_.size() && pattern_[end] == ',') ++end;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    if (end == pattern_.size() || pattern_[end] != '}') refuse(8, "is no repetition");
    const char after = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (after == '+' || after == '?' || after == '*') refuse(end + 2 - at_, "is not supported");
    copy(end + 1 - at_);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

std::string pcre2_literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (c > ' ' && c < 0x7F && !is_letter(c) && !is_digit(c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace fsdp
