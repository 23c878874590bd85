#include "lib/text/sources/python_json.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace fsdp::detail {
namespace {

constexpr std::string_view kLargeNumber = "1e308";

/// Returns the code unit of the escape \uXXXX at the beginning of `text`; -1 when there is none.
int code_unit(std::string_view text) {
  if (!text.starts_with("\\u") || text.size() < 6) return -1;
  int unit = 0;
  const auto* end = text.data() + 6;
  const auto read = std::from_chars(text.data() + 2, end, unit, 16);
  return read.ec == std::errc() && read.ptr == end ? unit : -1;
}

class Repair {
 public:
  explicit Repair(std::string_view line) : rest_(line) {}

  std::optional<std::string> run() {
    while (!rest_.empty()) {
      if (rest_.front() == '"') {
        take(1);
        take_string();
      } else if (!take_number()) {
        take(1);
      }
    }
    if (!changed_) return std::nullopt;
    return std::move(out_);
  }

 private:
  void take(std::size_t count) {
    count = std::min(count, rest_.size());
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void replace(std::size_t count, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(count);
    changed_ = true;
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
        replace(6, kHalfCharacter);
      }
    }
  }

  bool take_number() {
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (!rest_.starts_with(word)) continue;
      replace(word.size(), kLargeNumber);
      return true;
    }
    const auto length = std::min(rest_.find_first_not_of("-+.eE0123456789"), rest_.size());
    if (length == 0) return false;
    double value = 0;
    const auto read = std::from_chars(rest_.data(), rest_.data() + length, value);
    const auto number = rest_.substr(0, length);
    const bool large = number.find("e-") == number.npos && number.find("E-") == number.npos;  // others are near 0
    if (read.ec == std::errc::result_out_of_range && read.ptr == rest_.data() + length && large) {
      replace(length, kLargeNumber);
    } else {
      take(length);
    }
    return true;
  }

  std::string_view rest_;
  std::string out_;
  bool changed_ = false;
};

}  // namespace

std::optional<std::string> as_plain_json(std::string_view line) { return Repair(line).run(); }

bool holds_half_character(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().find(kHalfCharacter) != std::string::npos;
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_half_character);
}

}  // namespace fsdp::detail
