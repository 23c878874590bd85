#pragma once
// Reads JSON as Python's json module writes and reads it: NaN, Infinity, numbers of any size, halves of surrogate
// pairs.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class PythonJson {
 public:
  /// Notes what the text has beyond JSON.
  explicit PythonJson(std::string_view text);

  /// True if the text is what others, too, call JSON.
  bool is_plain() const { return is_plain_; }

  /// The text as JSON, if the original is what Python reads. Stand-ins take the place of what is beyond JSON: a large
  /// number, and a noncharacter for half of a surrogate pair.
  const std::string& plain_text() const { return text_; }

  /// Returns the value, with members in the order of the text. A number beyond the range of a double becomes infinite,
  /// a whole number beyond 64 bits a binary value: its digits. A string or name may hold stand-ins: holds_half().
  /// \throws as parse_json()
  nlohmann::ordered_json parse() const;

  /// True where a text, or some string or name in `value`, holds half of a surrogate pair.
  bool holds_half(std::string_view text) const { return !half_.empty() && text.find(half_) != text.npos; }
  bool holds_half(const nlohmann::ordered_json& value) const;
  static constexpr const char* kHalfProblem = "half of a surrogate pair (\\ud800 to \\udfff), which is no character";

 private:
  class Reader;

  std::string text_;
  bool is_plain_ = true;
  std::vector<std::string> numbers_;  ///< as written; in the text the large number stands for each
  std::string half_;                  ///< stands for half of a pair; occurs nowhere in the original
};

}  // namespace fsdp
