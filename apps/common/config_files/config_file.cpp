#include "apps/common/config_files/config_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <string_view>

namespace fsdp {
namespace {

constexpr std::string_view kLongQuote = "\"\"\"";

class Reader {
 public:
  /// Skips the byte order mark that Windows editors write at the start of a file.
  explicit Reader(std::string text) : text_(std::move(text)), here_(text_.starts_with("\xEF\xBB\xBF") ? 3 : 0) {}

  std::vector<CLI::ConfigItem> items() {
    std::vector<CLI::ConfigItem> items;
    while (skip_to_item()) {
      CLI::ConfigItem item;
      const auto line = this->line();
      item.name = name();
      lines_.emplace(item.name, line);
      item.inputs = at('=') ? values() : std::vector<std::string>{"true"};
      // Several lines may set the same option: their values are joined in order.
      const auto same = std::find_if(items.begin(), items.end(), [&](const auto& i) { return i.name == item.name; });
      if (same == items.end()) {
        items.push_back(std::move(item));
      } else {
        same->inputs.insert(same->inputs.end(), item.inputs.begin(), item.inputs.end());
      }
    }
    return items;
  }

  /// Returns the first line that sets each name. Call after items().
  const std::map<std::string, std::size_t>& lines() const { return lines_; }

 private:
  std::size_t line() const {
    const auto begin = text_.begin();
    return 1 + static_cast<std::size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(here_), '\n'));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw CLI::FileError(fmt::format("--config: line {}: {}", line(), what), CLI::ExitCodes::FileError);
  }
  bool done() const { return here_ >= text_.size(); }
  bool at(char c) const { return !done() && text_[here_] == c; }
  bool at_blank() const {
    return !done() && text_[here_] != '\n' && std::isspace(static_cast<unsigned char>(text_[here_]));
  }
  void skip_blanks() {
    while (at_blank()) ++here_;
  }
  void skip_line() {
    while (!done() && !at('\n')) ++here_;
  }

  bool skip_to_item() {
    while (!done()) {
      if (at('\n') || at_blank()) {
        ++here_;
      } else if (at('#') || at(';')) {
        skip_line();
      } else {
        return true;
      }
    }
    return false;
  }

  std::string name() {
    if (at('{')) fail("this is JSON, and options are lines name=value here, such as batch-size=2");
    if (at('[')) fail("sections are not known here; write name=value");
    const auto begin = here_;
    while (!done() && !at('=') && !at('\n') && !at('#')) ++here_;
    auto name = CLI::detail::trim_copy(text_.substr(begin, here_ - begin));
    CLI::detail::remove_quotes(name);
    if (name.empty()) fail("a name is missing before '='");
    if (const auto colon = name.find(':'); !at('=') && colon != name.npos && name.find_first_of(" \"{") >= colon &&
                                           (colon + 1 == name.size() || name[colon + 1] == ' ')) {
      throw YamlLine(line(), name);
    }
    if (const auto blank = name.find_first_of(" \t"); blank != std::string::npos && !at('=')) {
      fail(fmt::format("'{}' has no '=': write {}={}", name, name.substr(0, blank),
                       CLI::detail::trim_copy(name.substr(blank))));
    }
    if (name.find_first_of(" :{\"") != std::string::npos) fail(fmt::format("'{}': write name=value", name));
    return name;
  }

  /// Reads from the '=' to the end of the line, or to the closing bracket of a list.
  std::vector<std::string> values() {
    ++here_;
    skip_blanks();
    const bool list = at('[');
    if (list) ++here_;
    std::vector<std::string> values;
    for (;;) {
      skip_blanks();
      if (at(',') || (list && at('\n'))) {
        ++here_;
      } else if (at('#')) {
        skip_line();
      } else if (list && at(']')) {
        ++here_;
        break;
      } else if (done() && list) {
        fail("a ']' is missing");
      } else if (done() || at('\n')) {
        break;
      } else {
        values.push_back(value(list));
      }
    }
    if (values.empty()) values.emplace_back();
    return values;
  }

  std::string value(bool in_list) {
    if (text_.compare(here_, kLongQuote.size(), kLongQuote) == 0) return escaped_text();
    if (at('"') || at('\'')) {
      const char quote = text_[here_];
      const auto end = text_.find_first_of(std::string{quote, '\n'}, here_ + 1);
      if (end == std::string::npos || text_[end] == '\n') fail(fmt::format("a closing {} is missing", quote));
      auto value = text_.substr(here_ + 1, end - here_ - 1);
      here_ = end + 1;
      return value;
    }
    const auto begin = here_;
    while (!done() && !at('\n') && !at_blank() && !at(',') && !at('#') && !(in_list && at(']'))) ++here_;
    return text_.substr(begin, here_ - begin);
  }

  std::string escaped_text() {
    std::string value;
    for (here_ += kLongQuote.size(); text_.compare(here_, kLongQuote.size(), kLongQuote) != 0; ++here_) {
      if (here_ + 1 >= text_.size()) fail(fmt::format("a closing {} is missing", kLongQuote));
      value += at('\\') ? escape() : text_[here_];
    }
    here_ += kLongQuote.size();
    return value;
  }

  /// Decodes the escape at a backslash; leaves here_ at the last character of the escape.
  char escape() {
    constexpr std::string_view kNames = "nrt\"\\";
    constexpr std::string_view kMeanings = "\n\r\t\"\\";
    const char name = text_[++here_];
    if (const auto at = kNames.find(name); at != std::string_view::npos) return kMeanings[at];
    const auto digits = text_.substr(here_ + 1, 4);
    if (name != 'u' || digits.size() != 4 || !digits.starts_with("00") || std::isxdigit(digits[2]) == 0 ||
        std::isxdigit(digits[3]) == 0) {
      fail(fmt::format("\\{} is no escape: \\n, \\r, \\t, \\\", \\\\ and \\u00XX are", name));
    }
    here_ += 4;
    return static_cast<char>(std::stoi(digits, nullptr, 16));
  }

  std::string text_;
  std::size_t here_;
  std::map<std::string, std::size_t> lines_;
};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string escaped(const std::string& text) {
  std::string out(kLongQuote);
  for (const char c : text) {
    switch (c) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        out += is_control(c) ? fmt::format("\\u{:04x}", static_cast<unsigned char>(c)) : std::string(1, c);
    }
  }
  return out.append(kLongQuote);
}

/// Returns the value in the form that a config file needs: numbers, true and false bare, everything else in quotes.
std::string quoted(const std::string& text) {
  double number = 0;
  const bool digits_only = text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (text == "true" || text == "false" || (digits_only && CLI::detail::lexical_cast(text, number))) return text;
  if (std::any_of(text.begin(), text.end(), is_control)) return escaped(text);
  if (text.find('"') == std::string::npos) return '"' + text + '"';
  return text.find('\'') == std::string::npos ? '\'' + text + '\'' : escaped(text);
}

std::string given_value(const CLI::Option& option) {
  const auto results = option.reduced_results();
  if (results.size() == 1) return quoted(results.front());
  std::string list;
  for (const auto& result : results) list += (list.empty() ? "[" : ", ") + quoted(result);
  return list + "]";
}

std::string default_value(const CLI::Option& option) {
  const auto text = option.get_default_str();
  if (text.empty()) return option.get_expected_min() == 0 ? "false" : "\"\"";
  return text.front() == '[' ? text : quoted(text);
}

std::string comment(const std::string& text) { return "# " + CLI::detail::fix_newlines("# ", text) + "\n"; }

}  // namespace

YamlLine::YamlLine(std::size_t line, const std::string& text)
    : CLI::FileError(
          fmt::format("--config: line {}: '{}' is YAML: write name=value, one per line; --print-config shows "
                      "the form",
                      line, text),
          CLI::ExitCodes::FileError),
      key(text.substr(0, text.find(':'))),
      value(CLI::detail::trim_copy(text.substr(text.find(':') + 1))) {
  CLI::detail::remove_quotes(value);
}

std::size_t ConfigFile::line_of_option(std::istream& input, const std::vector<std::string>& names) const {
  Reader reader(std::string(std::istreambuf_iterator<char>(input), {}));
  (void)reader.items();
  std::size_t first = 0;
  for (const auto& name : names) {
    const auto found = reader.lines().find(name);
    if (found != reader.lines().end() && (first == 0 || found->second < first)) first = found->second;
  }
  return first;
}

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  return Reader(std::string(std::istreambuf_iterator<char>(input), {})).items();
}

std::string ConfigFile::to_config(const CLI::App* app, bool default_also, bool write_description,
                                  std::string prefix) const {
  std::string out;
  if (write_description) out += comment(app->get_description());
  auto groups = app->get_groups();
  const auto names_group = [](const std::string& group) { return !group.empty() && group != "Options"; };
  // CLI11 keeps hidden options in the group "".
  std::stable_partition(groups.begin(), groups.end(), [&](const auto& group) { return !names_group(group); });
  for (const auto& group : groups) {
    if (write_description && names_group(group)) out += "\n" + comment(group);
    for (const auto* option : app->get_options([&](const CLI::Option* o) { return o->get_group() == group; })) {
      if (!option->get_configurable()) continue;
      const bool given = option->count() > 0;
      if (!given && !default_also) continue;
      if (write_description && option->has_description()) out += "\n" + comment(option->get_description());
      out += fmt::format("{}{}{}={}\n", given ? "" : "#", prefix, option->get_single_name(),
                         given ? given_value(*option) : default_value(*option));
    }
  }
  return out;
}

std::string ConfigFile::to_flag(const CLI::ConfigItem& item) const { return item.inputs.back(); }

}  // namespace fsdp
