#include "lib/benchmarks/tasks/python_literal.hpp"

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;
constexpr int kMostLevels = 50;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::optional<ordered_json> whole() {
    auto read = value(0);
    skip_blanks();
    return at_ == text_.size() ? read : std::nullopt;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n\f").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool skip(std::string_view wanted) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }

  std::optional<ordered_json> value(int level) {
    if (level > kMostLevels) return std::nullopt;
    if (skip("[")) return elements(level, ']');
    if (skip("(")) return elements(level, ')');
    for (const auto& [name, meant] : {std::pair{"None", ordered_json()}, {"True", true}, {"False", false}}) {
      if (skip(name)) return meant;
    }
    if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"')) return texts();
    return number();
  }

  std::optional<ordered_json> elements(int level, char close) {
    auto list = ordered_json::array();
    const std::string end(1, close);
    bool comma = false;
    while (!skip(end)) {
      if (!list.empty() && !comma) return std::nullopt;
      auto element = value(level + 1);
      if (!element) return element;
      list.push_back(std::move(*element));
      comma = skip(",");
    }
    if (close == ')' && list.size() == 1 && !comma) return list.front();  // brackets around a value
    return list;
  }

  std::optional<ordered_json> number() {
    const auto rest = text_.substr(at_);
    const std::size_t sign = rest.starts_with('-') || rest.starts_with('+') ? 1 : 0;
    const auto end = std::min(rest.find_first_not_of("0123456789_.eE+-", sign), rest.size());
    std::string digits(rest.substr(sign, end - sign));
    std::erase(digits, '_');
    if (digits.empty()) return std::nullopt;
    const auto* last = digits.data() + digits.size();
    const bool minus = rest.front() == '-';
    at_ += end;
    std::int64_t integer = 0;
    if (const auto read = std::from_chars(digits.data(), last, integer); read.ec == std::errc() && read.ptr == last) {
      if (digits.size() > 1 && digits.front() == '0' && integer != 0) return std::nullopt;  // 07 is no number
      return minus ? -integer : integer;
    }
    double real = 0;
    const auto read = std::from_chars(digits.data(), last, real);
    if (read.ec != std::errc() || read.ptr != last) return std::nullopt;
    return minus ? -real : real;
  }

  /// One text, or several beside each other, which are joined.
  std::optional<ordered_json> texts() {
    std::string joined;
    for (bool first = true;; first = false) {
      skip_blanks();
      if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
        return first ? std::nullopt : std::optional<ordered_json>(joined);
      const auto part = quoted();
      if (!part) return std::nullopt;
      joined += *part;
    }
  }

  std::optional<std::string> quoted() {
    const char quote = text_[at_++];
    std::string out;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == quote) {
        ++at_;
        return out;
      }
      if (c == '\n') return std::nullopt;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (++at_ >= text_.size() || !escape(out)) return std::nullopt;
    }
    return std::nullopt;
  }

  bool escape(std::string& out) {
    const char c = text_[at_];
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n", kMeant = "\\'\"\a\b\f\n\r\t\v";
    if (const auto at = kLetters.find(c); at != kLetters.npos) {
      if (c != '\n') out += kMeant[at];
      return true;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) return false;
    const auto text = text_.substr(at_ + 1, digits);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + digits) return false;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    const auto character = static_cast<char32_t>(code);
    out += jinja::utf8_of(std::u32string_view(&character, 1));
    at_ += digits;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<ordered_json> python_literal(std::string_view text) { return Reader(text).whole(); }

}  // namespace fsdp
