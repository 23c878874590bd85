#include "lib/base/text/python_json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLargeNumber = 1e308;
constexpr std::string_view kLargeNumberText = "1e308";

/// Returns the code unit of the escape \uXXXX at the beginning of `text`; -1 when there is none.
int code_unit(std::string_view text) {
  if (!text.starts_with("\\u") || text.size() < 6) return -1;
  int unit = 0;
  const auto* end = text.data() + 6;
  const auto read = std::from_chars(text.data() + 2, end, unit, 16);
  return read.ec == std::errc() && read.ptr == end ? unit : -1;
}

/// A noncharacter, U+FDD0 to U+FDEF, that `text` holds neither as such nor escaped.
std::string unused_character(std::string_view text) {
  const auto lower = ascii_lower(std::string(text));
  for (int last = 0; last < 32; ++last) {
    std::string character{'\xef', '\xb7', static_cast<char>(0x90 + last)};
    const std::string digits{"de"[last / 16], "0123456789abcdef"[last % 16]};
    if (lower.find(character) == lower.npos && lower.find("\\ufd" + digits) == lower.npos) return character;
  }
  throw FormatError("holds half of a surrogate pair beside all 32 noncharacters U+FDD0 to U+FDEF");
}

bool is_whole(std::string_view number) { return number.find_first_of(".eE") == number.npos; }

/// True for a number in JSON's grammar.
bool is_number(std::string_view text) {
  const auto skip_digits = [&] {
    const auto count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count > 0;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  if (zero) text.remove_prefix(1);
  if (!zero && !skip_digits()) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  return text.empty();
}

bool fits_64_bits(std::string_view whole) {
  const auto* end = whole.data() + whole.size();
  std::int64_t integer = 0;
  std::uint64_t natural = 0;
  return std::from_chars(whole.data(), end, integer).ec == std::errc() ||
         std::from_chars(whole.data(), end, natural).ec == std::errc();
}

double as_double(const std::string& number) {
  if (number == "NaN") return std::nan("");
  return std::strtod(number.c_str(), nullptr);
}

}  // namespace

/// Goes through a text and writes it again.
class PythonJson::Reader {
 public:
  Reader(std::string_view text, PythonJson& json) : whole_(text), rest_(text), json_(json) {}

  void run() {
    while (!rest_.empty()) {
      if (rest_.front() == '"') {
        take(1);
        take_string();
      } else if (!take_word() && !take_number()) {
        take(1);
      }
    }
  }

 private:
  void take(std::size_t count) {
    count = std::min(count, rest_.size());
    json_.text_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void replace(std::size_t count, std::string_view by) {
    json_.text_ += by;
    rest_.remove_prefix(count);
  }

  /// Copies up to and including the closing quote.
  void take_string() {
    for (;;) {
      take(std::min(rest_.find_first_of("\"\\"), rest_.size()));
      if (rest_.empty()) return;
      if (rest_.front() == '"') return take(1);
      const int unit = code_unit(rest_);
      if (unit < 0xd800 || unit > 0xdfff) {
        take(2);
        continue;
      }
      const int next = code_unit(rest_.substr(6));
      if (unit < 0xdc00 && next >= 0xdc00 && next <= 0xdfff) {
        take(12);
      } else {
        if (json_.half_.empty()) json_.half_ = unused_character(whole_);
        replace(6, json_.half_);
        json_.is_plain_ = false;
      }
    }
  }

  void stand_in(std::size_t length) {
    json_.numbers_.emplace_back(rest_.substr(0, length));
    replace(length, kLargeNumberText);
  }

  bool take_word() {
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (!rest_.starts_with(word)) continue;
      stand_in(word.size());
      json_.is_plain_ = false;
      return true;
    }
    return false;
  }

  bool take_number() {
    const auto length = std::min(rest_.find_first_not_of("-+.eE0123456789"), rest_.size());
    if (length == 0) return false;
    const auto number = rest_.substr(0, length);
    const double value = length > 4 && is_number(number) ? std::strtod(std::string(number).c_str(), nullptr) : 0;
    if (std::isinf(value)) json_.is_plain_ = false;
    if (is_whole(number) ? std::abs(value) > 1e18 && !fits_64_bits(number)
                         : std::isinf(value) || value == kLargeNumber) {
      stand_in(length);
    } else {
      take(length);
    }
    // A letter after a number is an error and begins no word: -NaN.
    if (!rest_.empty() && (rest_.front() == 'N' || rest_.front() == 'I')) take(1);
    return true;
  }

  std::string_view whole_, rest_;
  PythonJson& json_;
};

PythonJson::PythonJson(std::string_view text) { Reader(text, *this).run(); }

nlohmann::ordered_json PythonJson::parse() const {
  parse_json(text_, "the object");  // checks sizes and names
  if (numbers_.empty()) return Json::parse(text_);
  auto number = numbers_.begin();
  return Json::parse(text_, [&](int, Json::parse_event_t event, Json& value) {
    const bool stands_in = event == Json::parse_event_t::value && value.is_number_float() && value == kLargeNumber;
    if (!stands_in || number == numbers_.end()) return true;
    value = is_number(*number) && is_whole(*number) ? Json::binary({number->begin(), number->end()})
                                                    : Json(as_double(*number));
    ++number;
    return true;
  });
}

bool PythonJson::holds_half(const nlohmann::ordered_json& value) const {
  if (value.is_string()) return holds_half(std::string_view(value.get_ref<const std::string&>()));
  if (value.is_array())
    return std::any_of(value.begin(), value.end(), [&](const Json& part) { return holds_half(part); });
  if (!value.is_object()) return false;
  const auto items = value.items();
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return holds_half(std::string_view(item.key())) || holds_half(item.value());
  });
}

}  // namespace fsdp
