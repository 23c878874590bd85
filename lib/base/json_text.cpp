#include "lib/base/json_text.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

/// `text`; throws where it is too deep or too much. Whether it is JSON at all is the parser's business. No memory.
std::string_view bounded(std::string_view text, const std::string& source) {
  constexpr int most_levels = 64;
  constexpr std::size_t most_values = 4'000'000;
  int level = 0;
  std::size_t values = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (i = text.find_first_of("\"\\", i + 1); i < text.size() && text[i] == '\\';) {
          i = text.find_first_of("\"\\", i + 2);
        }
        if (i >= text.size()) return text;  // cut inside a string: no JSON
        break;
      case '[':
      case '{':
        ++level;
        ++values;
        break;
      case ']':
      case '}':
        --level;
        break;
      case ',':
        ++values;
        break;
      default:
        break;
    }
    if (level > most_levels) {
      throw FormatError(source, i, "is nested deeper than " + std::to_string(most_levels) + " values");
    }
    if (values > most_values) {
      throw FormatError(source, i, "holds more than " + std::to_string(most_values) + " values");
    }
  }
  return text;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  return nlohmann::json::parse(bounded(text, source));
}

nlohmann::json parse_json_or_discard(std::string_view text, const std::string& source) {
  return nlohmann::json::parse(bounded(text, source), nullptr, false);
}

std::string json_text(const nlohmann::json& value, int indent) { return value.dump(indent); }

std::string printable_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fsdp
