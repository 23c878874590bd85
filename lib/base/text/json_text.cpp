#include "lib/base/text/json_text.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr int kMostLevels = 64;
constexpr std::size_t kMostValues = 4'000'000;

/// Position of a string's closing quote; npos when there is none.
std::size_t end_of_string(std::string_view text, std::size_t quote) {
  auto i = text.find_first_of("\"\\", quote + 1);
  while (i < text.size() && text[i] == '\\') i = text.find_first_of("\"\\", i + 2);
  return i < text.size() ? i : std::string_view::npos;
}

/// Decodes the escapes of a quoted name.
std::string unescaped(std::string_view quoted) {
  const auto value = nlohmann::json::parse(quoted, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string(quoted);
}

/// Scans text in one pass and checks its limits. The parser checks whether the text is valid JSON.
class Overview {
 public:
  /// \throws FormatError when the text has too many levels or values
  Overview(std::string_view text, const std::string& source) : text_(text), source_(source) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      switch (text[i]) {
        case '"': {
          const auto end = end_of_string(text, i);
          if (end == std::string_view::npos) return;  // truncated inside a string: not JSON
          if (name_follows_) add_name(i, end);
          name_follows_ = false;
          i = end;
          break;
        }
        case '[':
        case '{':
          open(i);
          break;
        case ']':
        case '}':
          if (!close()) return;
          break;
        case ',':
          ++values_;
          name_follows_ = !levels_.empty() && levels_.back().is_object;
          break;
        default:
          break;
      }
      if (values_ > kMostValues)
        throw FormatError(source, i, "holds more than " + std::to_string(kMostValues) + " values");
    }
  }

  /// Readers disagree on the value of a name that occurs twice in one object. \throws FormatError
  void refuse_names_twice() const {
    if (is_twice_)
      throw FormatError(source_, twice_at_, "the name \"" + twice_.substr(0, 200) + "\" occurs twice in one object");
  }

 private:
  struct Level {
    bool is_object;
    std::size_t first_name;
  };
  struct Name {
    std::size_t hash, begin, end;  ///< hash and range of the text between the quotes
  };

  void open(std::size_t at) {
    ++values_;
    levels_.push_back({text_[at] == '{', names_.size()});
    name_follows_ = levels_.back().is_object;
    if (levels_.size() > kMostLevels)
      throw FormatError(source_, at, "is nested deeper than " + std::to_string(kMostLevels) + " values");
  }

  bool close() {
    if (levels_.empty()) return false;
    const auto first = iterator_at(names_, levels_.back().first_name);
    std::sort(first, names_.end(),
              [&](const Name& a, const Name& b) { return a.hash != b.hash ? a.hash < b.hash : meant(a) < meant(b); });
    const auto same = [&](const Name& a, const Name& b) { return a.hash == b.hash && meant(a) == meant(b); };
    const auto twice = is_twice_ ? names_.end() : std::adjacent_find(first, names_.end(), same);
    if (twice != names_.end()) {
      is_twice_ = true;
      twice_ = meant(*twice);
      twice_at_ = std::max(twice->begin, (twice + 1)->begin);
    }
    names_.erase(first, names_.end());
    levels_.pop_back();
    name_follows_ = false;
    return true;
  }

  void add_name(std::size_t quote, std::size_t end) {
    const auto raw = text_.substr(quote + 1, end - quote - 1);
    const bool plain = raw.find('\\') == std::string_view::npos;
    const auto hash = plain ? std::hash<std::string_view>()(raw)
                            : std::hash<std::string_view>()(unescaped(text_.substr(quote, end - quote + 1)));
    names_.push_back({hash, quote + 1, end});
  }

  std::string meant(const Name& name) const {
    return unescaped(text_.substr(name.begin - 1, name.end - name.begin + 2));
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t values_ = 1;
  bool name_follows_ = false;
  std::vector<Level> levels_;
  std::vector<Name> names_;  ///< names of the objects that are open
  bool is_twice_ = false;
  std::string twice_;
  std::size_t twice_at_ = 0;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  const Overview overview(text, source);
  auto value = nlohmann::json::parse(text);
  overview.refuse_names_twice();
  return value;
}

nlohmann::json parse_json_or_discard(std::string_view text, const std::string& source) {
  const Overview overview(text, source);
  auto value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_discarded()) overview.refuse_names_twice();
  return value;
}

nlohmann::json parse_data_or_discard(std::string_view text, const std::string& source) {
  static_cast<void>(Overview(text, source));  // throws when a limit is exceeded
  return nlohmann::json::parse(text, nullptr, false);
}

std::string json_text(const nlohmann::json& value, int indent) { return value.dump(indent); }

std::string printable_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fsdp
