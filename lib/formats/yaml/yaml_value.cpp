#include "lib/formats/yaml/yaml_value.hpp"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <regex>
#include <utility>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

using Kind = YamlValue::Kind;

constexpr std::size_t kMostBytes = 1 << 20, kMostBytesOfAll = 16 << 20;
constexpr int kMostLevels = 64;
constexpr std::size_t kLongestNumber = 100;
constexpr std::string_view kTags = "tag:yaml.org,2002:";

[[noreturn]] void fail_at(std::size_t line, const std::string& what) {
  throw FormatError(fmt::format("line {}: {}", line, what));
}

/// Owns an event of libyaml.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { ::yaml_event_delete(&event); }

  std::size_t line() const { return event.start_mark.line + 1; }

  yaml_event_t event{};
};

/// Owns a parser of libyaml. The text must outlive it.
class EventReader {
 public:
  explicit EventReader(std::string_view text) {
    if (::yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    ::yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    ::yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
  }
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;
  ~EventReader() { ::yaml_parser_delete(&parser_); }

  /// \param event  a new one
  yaml_event_type_t next(Event& event) {
    if (::yaml_parser_parse(&parser_, &event.event) != 0) return event.event.type;
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string problem = parser_.problem == nullptr ? "is no YAML" : parser_.problem;
    if (parser_.error == YAML_READER_ERROR)
      throw FormatError(fmt::format("byte {}: {}", parser_.problem_offset, problem));
    fail_at(parser_.problem_mark.line + 1,
            parser_.context == nullptr ? problem : fmt::format("{}: {}", parser_.context, problem));
  }

 private:
  yaml_parser_t parser_{};
};

bool matches(const std::string& text, const std::regex& expression) {
  return text.size() <= kLongestNumber && std::regex_match(text, expression);
}

bool is_null(const std::string& text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

/// Returns true or false for the words of YAML 1.1.
std::optional<bool> boolean_of(const std::string& text) {
  static const std::regex yes("yes|Yes|YES|true|True|TRUE|on|On|ON"), no("no|No|NO|false|False|FALSE|off|Off|OFF");
  if (matches(text, yes)) return true;
  if (matches(text, no)) return false;
  return std::nullopt;
}

bool is_integer(const std::string& text) {
  static const std::regex expression(
      "[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+");
  return matches(text, expression);
}

bool is_real(const std::string& text) {
  static const std::regex expression(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)");
  return matches(text, expression);
}

template <typename Number>
std::optional<Number> number_of(std::string_view digits, int base = 10) {
  Number value{};
  const auto* end = digits.data() + digits.size();
  std::from_chars_result read{};
  if constexpr (std::is_integral_v<Number>) {
    read = std::from_chars(digits.data(), end, value, base);
  } else {
    read = std::from_chars(digits.data(), end, value);
  }
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// Adds up parts of sixty: "1:30" is 90.
template <typename Number>
std::optional<Number> sixtieths(std::string_view text) {
  Number sum{};
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(':', begin), text.size());
    const auto part = number_of<Number>(text.substr(begin, end - begin));
    if (!part || sum > Number{1'000'000'000'000}) return std::nullopt;
    sum = sum * 60 + *part;
    begin = end + 1;
  }
  return sum;
}

/// Returns the decimal digits of a number in a form of YAML 1.1; nothing where it is beyond 64 bits or no number.
std::optional<std::string> digits_of(std::string text, bool real) {
  std::erase(text, '_');
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.erase(0, 1);
  const auto signed_text = [&](const std::string& digits) { return (minus ? "-" : "") + digits; };
  if (real && text.starts_with('.') && text.size() > 1 && std::isalpha(static_cast<unsigned char>(text[1])) != 0)
    return signed_text(text[1] == 'i' || text[1] == 'I' ? "inf" : "nan");
  if (text.find(':') != std::string::npos) {
    const auto whole = real ? std::nullopt : sixtieths<std::int64_t>(text);
    const auto part = real ? sixtieths<double>(text) : std::nullopt;
    if (!whole && !part) return std::nullopt;
    return signed_text(whole ? std::to_string(*whole) : fmt::format("{}", *part));
  }
  if (real) return number_of<double>(text) ? std::optional(signed_text(text)) : std::nullopt;
  const int base = text.starts_with("0x") ? 16 : text.starts_with("0b") ? 2 : text.starts_with('0') ? 8 : 10;
  const auto value = number_of<std::uint64_t>(std::string_view(text).substr(base == 16 || base == 2 ? 2 : 0), base);
  return value ? std::optional((minus && *value != 0 ? "-" : "") + std::to_string(*value)) : std::nullopt;
}

/// Builds values of events.
class Builder {
 public:
  Builder(std::string_view text, YamlTags tags) : events_(text), tags_(tags) {}

  YamlValue document() {
    Event start, begin, end;
    events_.next(start);
    YamlValue value;
    if (events_.next(begin) == YAML_STREAM_END_EVENT) return value;
    value = next_node(0);
    Event of_document;
    events_.next(of_document);
    if (events_.next(end) != YAML_STREAM_END_EVENT) fail_at(end.line(), "another document begins, and one is expected");
    return value;
  }

 private:
  YamlValue next_node(int level) {
    Event event;
    events_.next(event);
    return node(event, level);
  }

  YamlValue node(const Event& event, int level) {
    if (level > kMostLevels) fail_at(event.line(), fmt::format("more than {} levels", kMostLevels));
    const auto& e = event.event;
    switch (e.type) {
      case YAML_ALIAS_EVENT:
        return copy_of(event);
      case YAML_SCALAR_EVENT:
        return remembered(scalar(event), e.data.scalar.anchor);
      case YAML_SEQUENCE_START_EVENT:
        return remembered(list(event, level), e.data.sequence_start.anchor);
      case YAML_MAPPING_START_EVENT:
        return remembered(map(event, level), e.data.mapping_start.anchor);
      default:
        fail_at(event.line(), "a value was expected");
    }
  }

  YamlValue remembered(YamlValue value, const yaml_char_t* anchor) {
    if (anchor != nullptr) {
      value.named = true;
      count(value);  // of the copy
      const std::string name = reinterpret_cast<const char*>(anchor);
      if (!anchors_.emplace(name, value).second) fail_at(value.line, fmt::format("&{} is there twice", name));
    }
    return value;
  }

  YamlValue copy_of(const Event& event) {
    const std::string name = reinterpret_cast<const char*>(event.event.data.alias.anchor);
    const auto found = anchors_.find(name);
    if (found == anchors_.end()) fail_at(event.line(), fmt::format("*{}: no value before it is named &{}", name, name));
    count(found->second);
    return found->second;
  }

  /// Counts the bytes of a value with all that is in it, so that aliases of aliases end.
  void count(const YamlValue& value) {
    bytes_ += sizeof(YamlEntry) + value.text.size();
    if (bytes_ > kMostBytesOfAll)
      fail_at(value.line,
              fmt::format("with its aliases replaced the file has more than {} MiB", kMostBytesOfAll >> 20));
    for (const auto& item : value.items) count(item);
    for (const auto& entry : value.entries) count(entry.value);
  }

  /// \return the tag without what YAML's own have in front; "": none
  static std::string tag_of(const Event& event, const yaml_char_t* tag) {
    if (tag == nullptr) return "";
    const std::string text = reinterpret_cast<const char*>(tag);
    if (text == "!") return "str";
    if (!text.starts_with(kTags)) fail_at(event.line(), fmt::format("the type {} is not known here", text));
    return text.substr(kTags.size());
  }

  static YamlValue empty(Kind kind, const Event& event) {
    YamlValue value;
    value.kind = kind;
    value.line = event.line();
    return value;
  }

  YamlValue scalar(const Event& event) const {
    const auto& s = event.event.data.scalar;
    auto value = empty(Kind::null, event);
    value.text.assign(reinterpret_cast<const char*>(s.value), s.length);
    if (tags_ == YamlTags::kept && s.tag != nullptr) {
      const std::string tag = reinterpret_cast<const char*>(s.tag);
      if (tag != "!" && !tag.starts_with(kTags)) {
        value.kind = Kind::text;
        value.tag = tag;
        return value;
      }
    }
    const auto tag = tag_of(event, s.tag);
    const bool open = tag.empty() && s.plain_implicit != 0;
    const bool real = tag == "float" || (open && is_real(value.text));
    if (real || tag == "int" || (open && is_integer(value.text))) {
      const auto digits = digits_of(value.text, real);
      if (!digits) fail_at(value.line, fmt::format("'{}' is no number of 64 bits", value.text));
      value.kind = Kind::number;
      value.text = *digits;
    } else if (tag == "null" || (open && is_null(value.text))) {
      value.text.clear();
    } else if (const auto boolean = tag == "bool" || open ? boolean_of(value.text) : std::nullopt) {
      value.kind = Kind::boolean;
      value.text = *boolean ? "true" : "false";
    } else if (tag == "str" || tag.empty()) {
      value.kind = Kind::text;
    } else {
      fail_at(value.line, fmt::format("'{}' is no value of the type !!{} here", value.text, tag));
    }
    return value;
  }

  YamlValue list(const Event& event, int level) {
    if (const auto tag = tag_of(event, event.event.data.sequence_start.tag); !tag.empty() && tag != "seq")
      fail_at(event.line(), fmt::format("a list is no value of the type !!{} here", tag));
    auto value = empty(Kind::list, event);
    for (;;) {
      Event item;
      if (events_.next(item) == YAML_SEQUENCE_END_EVENT) return value;
      value.items.push_back(node(item, level + 1));
    }
  }

  YamlValue map(const Event& event, int level) {
    if (const auto tag = tag_of(event, event.event.data.mapping_start.tag); !tag.empty() && tag != "map")
      fail_at(event.line(), fmt::format("a mapping is no value of the type !!{} here", tag));
    auto value = empty(Kind::map, event);
    std::map<std::string, std::size_t> lines;  // of the keys
    std::vector<YamlEntry> merged;
    for (;;) {
      Event key;
      if (events_.next(key) == YAML_MAPPING_END_EVENT) break;
      const bool merges = key.event.type == YAML_SCALAR_EVENT && key.event.data.scalar.plain_implicit != 0 &&
                          std::string_view(reinterpret_cast<const char*>(key.event.data.scalar.value)) == "<<";
      const auto name = node(key, level + 1);
      if (!name.is_scalar()) fail_at(key.line(), "a key is a list or a mapping, and a name is expected");
      const auto [before, is_new] = lines.emplace(name.text, key.line());
      if (!is_new) fail_at(key.line(), fmt::format("'{}' is there twice, also on line {}", name.text, before->second));
      auto of_key = next_node(level + 1);
      if (merges) {
        merged = entries_of(of_key, key.line());
      } else {
        value.entries.push_back({name.text, key.line(), std::move(of_key)});
      }
    }
    for (auto& entry : merged) {
      if (lines.emplace(entry.key, entry.line).second) value.entries.push_back(std::move(entry));
    }
    return value;
  }

  /// Returns the entries of the mapping, or of the mappings, that a key << names; of two with one key the first counts.
  static std::vector<YamlEntry> entries_of(YamlValue& value, std::size_t line) {
    std::vector<YamlEntry> all;
    const auto add = [&](YamlValue& from) {
      if (from.kind != Kind::map) fail_at(line, "<< names something else than a mapping");
      all.insert(all.end(), std::make_move_iterator(from.entries.begin()), std::make_move_iterator(from.entries.end()));
    };
    if (value.kind != Kind::list) add(value);
    for (auto& item : value.items) add(item);
    return all;
  }

  EventReader events_;
  YamlTags tags_;
  std::map<std::string, YamlValue> anchors_;
  std::size_t bytes_ = 0;
};

}  // namespace

YamlValue read_yaml(std::string_view text, YamlTags tags) {
  if (text.size() > kMostBytes) throw FormatError(fmt::format("has more than {} MiB", kMostBytes >> 20));
  return Builder(text, tags).document();
}

}  // namespace fsdp
