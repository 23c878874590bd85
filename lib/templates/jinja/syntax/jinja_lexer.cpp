#include "lib/templates/jinja/syntax/jinja_lexer.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp::jinja {
namespace {

constexpr std::size_t kMostTokens = 400'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<std::uint8_t>(c) >= 0x80;
}

/// Line ends as \n.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') text += source[i];
    if (source[i] == '\r' && source.substr(i + 1, 1) != "\n") text += '\n';
  }
  return text;
}

/// The characters that a quoted text means, with Python's escapes.
std::string unescaped(std::string_view quoted, int line) {
  std::string out;
  for (std::size_t i = 0; i < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      out += quoted[i];
      continue;
    }
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n", kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = quoted[++i];
    if (const auto at = kLetters.find(c); at != kLetters.npos) {
      if (c != '\n') out += kMeant[at];  // a line end after a backslash is left out
      continue;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const bool octal = c >= '0' && c <= '7';
    if (digits == 0 && !octal) {
      if (c == 'N') fail(line, "characters cannot be named by \\N here");
      out += '\\';
      out += c;
      continue;
    }
    const auto rest = quoted.substr(i + (octal ? 0 : 1), octal ? 3 : digits);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), code, octal ? 8 : 16);
    const auto used = static_cast<std::size_t>(end - rest.data());
    if (error != std::errc() || (!octal && used != digits)) fail(line, "a \\ escape in a text is incomplete");
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail(line, "a \\ escape in a text is no character");
    const auto character = static_cast<char32_t>(code);
    out += utf8_of(std::u32string_view(&character, 1));
    i += used - (octal ? 1 : 0);
  }
  return out;
}

/// Splits a template into tokens.
class Lexer {
 public:
  Lexer(std::string_view source, bool trims) : source_(with_plain_line_ends(source)), trims_(trims) {
    if (trims && source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const auto begin = next_tag();
      if (begin == std::string::npos) {
        add_data(at_, source_.size());
        break;
      }
      const char kind = source_[begin + 1];
      if (kind == '%' && raw(begin)) continue;
      const char sign = data_before(begin, kind);
      at_ = begin + 2 + (sign != 0 ? 1 : 0);
      if (kind == '#') {
        comment();
      } else {
        add(kind == '%' ? TokenKind::block_begin : TokenKind::output_begin, {});
        while (!end_of_tag(kind)) token();
      }
    }
    add(TokenKind::end, {});
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) {
    if (tokens_.size() >= kMostTokens) fail(line_, "the template is too long");
    tokens_.push_back({kind, line_, std::move(text)});
  }
  void add_data(std::size_t begin, std::size_t end) {
    if (begin < end) add(TokenKind::data, source_.substr(begin, end - begin));
  }
  /// Goes to `at`, counting lines.
  void go(std::size_t at) {
    line_ += static_cast<int>(std::count(iterator_at(source_, at_), iterator_at(source_, at), '\n'));
    at_ = at;
  }
  bool here(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }
  std::size_t behind_spaces(std::size_t at) const {
    const auto rest = std::string_view(source_).substr(at);
    return source_.size() - strip(rest, true, false).size();
  }

  std::size_t next_tag() const {
    for (auto at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && (source_[at + 1] == '%' || source_[at + 1] == '{' || source_[at + 1] == '#'))
        return at;
    }
    return std::string::npos;
  }

  /// Adds the data before a tag and returns the tag's mark - or +, or 0.
  char data_before(std::size_t begin, char kind) {
    char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    if (sign != '-' && sign != '+') sign = 0;
    const auto text = std::string_view(source_).substr(at_, begin - at_);
    auto end = begin;
    if (sign == '-') {
      end = at_ + strip(text, false, true).size();
    } else if (trims_ && sign == 0 && kind != '{') {
      const auto line_end = text.rfind('\n');
      const auto start = line_end == text.npos ? 0 : line_end + 1;
      const bool starts_line = start > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (starts_line && strip(text.substr(start)).empty()) end = at_ + start;
    }
    add_data(at_, end);
    go(begin);
    return sign;
  }

  /// Passes the end of a tag that begins with `close` ('%', '}' or '#'). \return false when none is here
  bool end_here(char close) {
    const std::string end{close, '}'};
    if (here("-" + end)) {
      go(behind_spaces(at_ + 3));
      return true;
    }
    if (close != '}' && here("+" + end)) {
      at_ += 3;
      return true;
    }
    if (!here(end)) return false;
    at_ += 2;
    if (trims_ && close != '}' && here("\n")) go(at_ + 1);
    return true;
  }

  void comment() {
    const int first = line_;
    for (;; go(at_ + 1)) {
      if (at_ >= source_.size()) fail(first, "a comment has no end #}");
      if (end_here('#')) return;
    }
  }

  /// Reads {% raw %} ... {% endraw %}. \return false when none begins here
  bool raw(std::size_t begin) {
    auto at = begin + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = behind_spaces(at);
    if (source_.compare(at, 3, "raw") != 0) return false;
    at = behind_spaces(at + 3);
    const bool strips = source_.compare(at, 3, "-%}") == 0;
    if (!strips && source_.compare(at, 2, "%}") != 0) return false;
    data_before(begin, '%');
    const int first = line_;
    go(strips ? behind_spaces(at + 3) : at + 2);
    for (auto next = source_.find("{%", at_); next != std::string::npos; next = source_.find("{%", next + 2)) {
      auto name = next + 2;
      if (name < source_.size() && (source_[name] == '-' || source_[name] == '+')) ++name;
      name = behind_spaces(name);
      if (source_.compare(name, 6, "endraw") != 0) continue;
      const auto end = behind_spaces(name + 6);
      if (source_.compare(end, 2, "%}") != 0 && source_.compare(end, 3, "-%}") != 0 &&
          source_.compare(end, 3, "+%}") != 0)
        continue;
      data_before(next, '%');
      go(end);
      end_here('%');
      return true;
    }
    fail(first, "{% raw %} has no {% endraw %}");
  }

  bool end_of_tag(char kind) {
    go(behind_spaces(at_));
    if (at_ >= source_.size()) fail(line_, "the template ends inside a tag");
    if (!open_.empty() || !end_here(kind == '%' ? '%' : '}')) return false;
    add(kind == '%' ? TokenKind::block_end : TokenKind::output_end, {});
    return true;
  }

  void token() {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return text(c);
    if (is_name_character(c)) {
      auto end = at_;
      while (end < source_.size() && is_name_character(source_[end])) ++end;
      add(TokenKind::name, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    sign();
  }

  void text(char quote) {
    auto end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(line_, "a text has no closing quote");
    add(TokenKind::text, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1), line_));
    go(end + 1);
  }

  /// End of a run of digits with single _ between them.
  std::size_t behind_digits(std::size_t at, bool (*is_valid)(char) = is_digit) const {
    while (at < source_.size() &&
           (is_valid(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is_valid(source_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    const auto starts = [&](std::size_t at, std::string_view characters) {
      return at < source_.size() && characters.find(source_[at]) != characters.npos;
    };
    auto end = behind_digits(at_);
    bool is_float = false;
    if (end < source_.size() && source_[end] == '.' && end + 1 < source_.size() && is_digit(source_[end + 1])) {
      end = behind_digits(end + 1);
      is_float = true;
    }
    if (starts(end, "eE")) {
      const auto exponent = end + (starts(end + 1, "+-") ? 2 : 1);
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        end = behind_digits(exponent);
        is_float = true;
      }
    }
    int base = 10;
    if (!is_float) {
      const bool zero = source_[at_] == '0';
      base = zero && starts(at_ + 1, "xX")   ? 16
             : zero && starts(at_ + 1, "oO") ? 8
             : zero && starts(at_ + 1, "bB") ? 2
                                             : 10;
      if (base != 10)
        end = behind_digits(at_ + 2, [](char c) { return std::isxdigit(static_cast<std::uint8_t>(c)) != 0; });
      if (base == 10 && zero && source_.find_first_not_of("0_", at_) < end) fail(line_, "a number begins with 0");
    }
    auto digits = source_.substr(at_, end - at_);
    std::erase(digits, '_');
    add(TokenKind::number, {});
    tokens_.back().number = is_float ? Value(std::strtod(digits.c_str(), nullptr)) : Value(whole(digits, base));
    at_ = end;
  }

  Integer whole(std::string_view digits, int base) const {
    if (base != 10) digits.remove_prefix(2);
    Integer value = 0;
    if (digits.empty()) fail(line_, "a number has no digits");
    for (const char c : digits) {
      const int digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (digit >= base) fail(line_, "a number has a digit that is none");
      if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
        fail(line_, "a number has more than 128 bits");
    }
    return value;
  }

  void sign() {
    constexpr std::array<std::string_view, 6> kLong{"//", "**", "==", "!=", "<=", ">="};
    constexpr std::string_view kShort = "+-*/%~[](){}<>=.:|,;";
    const auto rest = std::string_view(source_).substr(at_);
    for (const auto two : kLong) {
      if (!rest.starts_with(two)) continue;
      add(TokenKind::sign, std::string(two));
      at_ += 2;
      return;
    }
    const char c = rest.front();
    if (kShort.find(c) == kShort.npos) fail(line_, "'" + printable(rest.substr(0, 1)) + "' has no meaning here");
    if (c == '(' || c == '[' || c == '{') open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open_.empty() || open_.back() != c) fail(line_, std::string("unexpected '") + c + "'");
      open_.pop_back();
    }
    add(TokenKind::sign, std::string(1, c));
    ++at_;
  }

  std::string source_;
  bool trims_;  ///< trim_blocks, lstrip_blocks, and no line end at the end
  std::size_t at_ = 0;
  int line_ = 1;
  std::string open_;  ///< closing brackets that are due
  std::vector<Token> tokens_;
};

}  // namespace

void fail(int line, const std::string& problem) { throw FormatError("line " + std::to_string(line) + ": " + problem); }

std::vector<Token> tokens_of(std::string_view source, JinjaEnvironment environment) {
  return Lexer(source, environment == JinjaEnvironment::chat).run();
}

}  // namespace fsdp::jinja
