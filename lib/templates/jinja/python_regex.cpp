#include "lib/templates/jinja/python_regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <new>
#include <span>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::uint32_t kMostSteps = 10'000'000;
constexpr std::uint32_t kMostHeap_kib = 64 << 10;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Writes a pattern of Python in PCRE2's words.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        member(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        group();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::size_t length) const {
    throw FormatError(fmt::format("{}: '{}' at byte {} of the pattern is not known to Python's re, or not supported",
                                  where_, pattern_.substr(at_, length), at_));
  }
  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  void put(std::string_view text, std::size_t read) {
    out_ += text;
    at_ += read;
  }

  void escape() {
    const char c = peek(1);
    if (c == '\0') refuse(1);
    if (!is_letter(c)) return copy(2);
    constexpr std::string_view kAlike = "dDwWbnrtfa";
    // Python's white space has four control characters that PCRE2's has not.
    if (c == 's') return put(in_class_ ? "\\s\\x1c-\\x1f" : "[\\s\\x1c-\\x1f]", 2);
    if (c == 'S' && !in_class_) return put("[^\\s\\x1c-\\x1f]", 2);
    if (c == 'v') return put("\\x0b", 2);
    if (c == 'x' || c == 'u' || c == 'U') return code(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    if (c == 'Z' && !in_class_) return put("\\z", 2);
    if (kAlike.find(c) != kAlike.npos || (!in_class_ && (c == 'A' || c == 'B'))) return copy(2);
    refuse(2);
  }

  void code(std::size_t digits) {
    const auto text = pattern_.substr(std::min(at_ + 2, pattern_.size()), digits);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + text.size()) refuse(digits + 2);
    put(fmt::format("\\x{{{:x}}}", value), digits + 2);
  }

  void open_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') put("\\]", 1);
    in_class_ = true;
  }

  void member(char c) {
    if (c == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) return put("\\[", 1);  // no POSIX class
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse(2);
    if (peek(1) != '?') return copy(1);
    constexpr std::array<std::string_view, 9> kKnown{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?P<", "(?P=", "(?#", "(?>"};
    for (const auto known : kKnown) {
      if (pattern_.substr(at_).starts_with(known)) return copy(known.size());
    }
    if (peek(2) == '(') return copy(2);  // conditional: the group's number follows
    auto end = at_ + 2;
    while (end < pattern_.size() && (is_letter(pattern_[end]) || pattern_[end] == '-')) ++end;
    const auto flags = pattern_.substr(at_ + 2, end - at_ - 2);
    const bool closed = end < pattern_.size() && (pattern_[end] == ')' || pattern_[end] == ':');
    if (flags.empty() || !closed || flags.find_first_not_of("imsxu-") != flags.npos) refuse(end + 1 - at_);
    std::string kept(flags);
    std::erase(kept, 'u');  // is so for every text
    put("(?" + kept, flags.size() + 2);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  ::pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct PythonRegex::Compiled {
  template <auto Free>
  struct Freer {
    template <typename T>
    void operator()(T* object) const {
      Free(object);
    }
  };
  template <typename T, auto Free>
  using Owned = std::unique_ptr<T, Freer<Free>>;

  std::string where;
  Owned<pcre2_code, ::pcre2_code_free> code;
  Owned<pcre2_match_context, ::pcre2_match_context_free> limits;
  std::uint32_t groups = 0;

  /// Calls take(offsets) for each match as finditer() does: an empty one may follow another at its end.
  void each(std::string_view text, const std::function<bool(std::span<const std::size_t>)>& take) const {
    const Owned<pcre2_match_data, ::pcre2_match_data_free> match(
        ::pcre2_match_data_create_from_pattern(code.get(), nullptr));
    if (match == nullptr) throw std::bad_alloc();
    std::size_t at = 0;
    std::uint32_t options = 0;
    for (;;) {
      const int found = ::pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options,
                                      match.get(), limits.get());
      if (found == PCRE2_ERROR_NOMATCH) return;
      if (found < 0) throw FormatError(fmt::format("{}: the search failed: {}", where, message_of(found)));
      const auto* offsets = ::pcre2_get_ovector_pointer(match.get());
      if (!take({offsets, 2 * (std::size_t{groups} + 1)})) return;
      at = offsets[1];
      options = PCRE2_NO_UTF_CHECK | (offsets[0] == offsets[1] ? PCRE2_NOTEMPTY_ATSTART : 0);
    }
  }

  static std::string group(std::string_view text, std::span<const std::size_t> offsets, std::size_t number) {
    const auto begin = offsets[2 * number], end = offsets[2 * number + 1];
    return begin == PCRE2_UNSET ? std::string() : std::string(text.substr(begin, end - begin));
  }

  /// The number of the group that \g<name> means.
  std::size_t named(const std::string& name) const {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) return number;
    const int found = ::pcre2_substring_number_from_name(code.get(), reinterpret_cast<PCRE2_SPTR>(name.c_str()));
    return found > 0 ? static_cast<std::size_t>(found) : std::size_t{groups} + 1;
  }

  /// The replacement, taken apart: text, group, text, group, ..., text.
  struct Replacement {
    std::vector<std::string> texts{""};
    std::vector<std::size_t> group_numbers;
  };
  Replacement replacement_of(std::string_view replacement) const {
    Replacement parts;
    const auto add_group = [&](std::size_t number) {
      if (number > groups)
        throw FormatError(fmt::format("{}: the replacement '{}' names a group that is not there", where, replacement));
      parts.group_numbers.push_back(number);
      parts.texts.emplace_back();
    };
    for (std::size_t i = 0; i < replacement.size(); ++i) {
      const char next = i + 1 < replacement.size() ? replacement[i + 1] : '\0';
      if (replacement[i] != '\\') {
        parts.texts.back() += replacement[i];
        continue;
      }
      ++i;
      constexpr std::string_view kLetters = "abfnrtv", kMeant = "\a\b\f\n\r\t\v";
      if (next == 'g' && replacement.substr(i + 1, 1) == "<") {
        const auto end = std::min(replacement.find('>', i), replacement.size());
        add_group(named(std::string(replacement.substr(i + 2, end - i - 2))));
        i = end;
      } else if (is_digit(next) && next != '0') {
        std::size_t number = static_cast<std::size_t>(next - '0');
        if (i + 1 < replacement.size() && is_digit(replacement[i + 1])) number = number * 10 + (replacement[++i] - '0');
        add_group(number);
      } else if (const auto at = kLetters.find(next); at != kLetters.npos) {
        parts.texts.back() += kMeant[at];
      } else if (next == '\\') {
        parts.texts.back() += next;
      } else if (next == '\0' || is_letter(next) || is_digit(next)) {
        throw FormatError(
            fmt::format("{}: the replacement '{}' has an escape that Python does not know or that is "
                        "not supported",
                        where, replacement));
      } else {
        parts.texts.back() += '\\';
        parts.texts.back() += next;
      }
    }
    return parts;
  }
};

PythonRegex::PythonRegex(std::string_view pattern, std::string where) {
  auto made = std::make_unique<Compiled>();
  const auto text = Translation(pattern, where).run();
  const Compiled::Owned<pcre2_compile_context, ::pcre2_compile_context_free> context(
      ::pcre2_compile_context_create(nullptr));
  made->limits.reset(::pcre2_match_context_create(nullptr));
  if (context == nullptr || made->limits == nullptr) throw std::bad_alloc();
  ::pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  ::pcre2_set_match_limit(made->limits.get(), kMostSteps);
  ::pcre2_set_heap_limit(made->limits.get(), kMostHeap_kib);
  int error = 0;
  std::size_t at = 0;
  made->code.reset(::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &at, context.get()));
  if (made->code == nullptr)
    throw FormatError(fmt::format("{}: '{}' is no regular expression: {}", where, pattern, message_of(error)));
  ::pcre2_pattern_info(made->code.get(), PCRE2_INFO_CAPTURECOUNT, &made->groups);
  made->where = std::move(where);
  compiled_ = std::move(made);
}

PythonRegex::~PythonRegex() = default;
PythonRegex::PythonRegex(PythonRegex&&) noexcept = default;
PythonRegex& PythonRegex::operator=(PythonRegex&&) noexcept = default;

std::vector<std::vector<std::string>> PythonRegex::find_all(std::string_view text) const {
  std::vector<std::vector<std::string>> all;
  compiled_->each(text, [&](std::span<const std::size_t> offsets) {
    auto& groups = all.emplace_back();
    for (std::size_t i = compiled_->groups == 0 ? 0 : 1; i <= compiled_->groups; ++i)
      groups.push_back(Compiled::group(text, offsets, i));
    return true;
  });
  return all;
}

std::string PythonRegex::replace(std::string_view text, std::string_view replacement, std::int64_t most) const {
  const auto parts = compiled_->replacement_of(replacement);
  std::string out;
  std::size_t done = 0;
  std::int64_t count = 0;
  compiled_->each(text, [&](std::span<const std::size_t> offsets) {
    out += text.substr(done, offsets[0] - done);
    out += parts.texts.front();
    for (std::size_t i = 0; i < parts.group_numbers.size(); ++i)
      out += Compiled::group(text, offsets, parts.group_numbers[i]) + parts.texts[i + 1];
    done = offsets[1];
    return ++count != most;
  });
  return out.append(text.substr(done));
}

}  // namespace fsdp
