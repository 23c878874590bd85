#include "apps/common/option_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "apps/common/config_files/config_file.hpp"
#include "lib/base/process/variables.hpp"

namespace fsdp {
namespace {

std::string_view without_plus(std::string_view text) { return text.substr(text.starts_with('+') ? 1 : 0); }

bool is_list(const std::string& text) {
  return text.find(',') != std::string::npos && text.find_first_not_of("0123456789, ") == std::string::npos;
}

std::string of_list(const std::string& text) {
  return fmt::format("'{}' is a list, and one whole number is expected", text);
}

template <typename Integer>
std::string problem_with_integer(std::string& text, bool any_sign, const std::string& range) {
  const auto digits = without_plus(text);
  std::int64_t negative = 0;
  if (!any_sign && std::from_chars(digits.data(), digits.data() + digits.size(), negative).ec == std::errc() &&
      negative < 0) {
    return fmt::format("{} is negative, give {}", text, range.empty() ? "0 or more" : range);
  }
  Integer value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) return fmt::format("{} does not fit into 64 bits", text);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return is_list(text) ? of_list(text) : fmt::format("'{}' is no whole number", text);
  }
  text = std::to_string(value);  // in decimal, because CLI11 would read 010 as 8
  return "";
}

std::string problem_with_real(const std::string& text, bool any_sign, const std::string& range) {
  const auto digits = without_plus(text);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) return fmt::format("{} is beyond what a double can hold", text);
  if (error != std::errc() || end != digits.data() + digits.size()) return fmt::format("'{}' is no number", text);
  if (!std::isfinite(value)) return fmt::format("{} is not finite, give a number", text);
  if (value < 0 && !any_sign) return fmt::format("{} is negative, give {}", text, range.empty() ? "0 or more" : range);
  return "";
}

/// Returns what is wrong with a whole number that is followed by a unit.
std::string problem_with_size(const std::string& text) {
  std::uint64_t value = 0;
  const auto error = std::from_chars(text.data(), text.data() + text.size(), value).ec;
  if (error == std::errc::result_out_of_range) return fmt::format("{} does not fit into 64 bits", text);
  return error == std::errc() ? "" : fmt::format("'{}' is no size, give a number of bytes such as 64MiB", text);
}

/// Returns the check of an option that takes numbers, which runs before all others and refuses what is no number of the
/// type: nan, infinities, integers that do not fit into 64 bits (which CLI11 would truncate silently), and negative
/// values. Whole numbers are decimal, also with leading zeros. Empty: the option takes no numbers.
std::function<std::string(std::string&)> number_check(const std::string& type, const OptionFacts& facts) {
  if (facts.is_size) return problem_with_size;
  if (type.starts_with("INT")) {
    return
        [any_sign = facts.any_sign, range = facts.range.words(), instead = facts.instead_of_list](std::string& text) {
          const auto problem = problem_with_integer<std::int64_t>(text, any_sign, range);
          return problem.empty() || instead.empty() || !is_list(text) ? problem : problem + ": " + instead;
        };
  }
  if (type.starts_with("UINT"))
    return [range = facts.range.words()](std::string& text) {
      return problem_with_integer<std::uint64_t>(text, false, range);
    };
  if (type.starts_with("FLOAT"))
    return [any_sign = facts.any_sign, range = facts.range.words()](const std::string& text) {
      return problem_with_real(text, any_sign, range);
    };
  return {};
}

CLI::Validator range_check(const NumberRange& range) {
  const auto check = [range](const std::string& text) {
    double value = 0;
    const auto digits = without_plus(text);
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return range.holds(value) ? std::string() : fmt::format("{} is out of range, give {}", text, range.words());
  };
  return {check, range.words()};
}

/// For "block, none, size:N (N parameters per unit)" returns block, none and size:N.
std::vector<std::string> words_of(std::string text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(", ", at), text.size());
    const auto word = text.substr(at, end - at);
    if (!word.starts_with("or ")) words.push_back(word.substr(0, word.find(' ')));
    at = end + 2;
  }
  return words;
}

nlohmann::json bounds_of(const NumberRange& range) {
  nlohmann::json bounds = nlohmann::json::object();
  if (range.from) bounds["from"] = *range.from;
  if (range.above) bounds["above"] = *range.above;
  if (range.to) bounds["to"] = *range.to;
  if (range.below) bounds["below"] = *range.below;
  return bounds;
}

nlohmann::json describe_option(const CLI::Option& option, const OptionFacts& facts) {
  nlohmann::json names = nlohmann::json::array();
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  if (option.get_positional()) names.push_back(option.get_name(true, false));
  const auto type = option.get_type_name();
  const bool flag = option.get_items_expected_max() == 0;
  const bool is_path = facts.path != PathKind::none && facts.path != PathKind::folder;
  return {{"names", names},
          {"group", option.get_group()},
          {"description", option.get_description()},
          {"type", flag ? "" : type.substr(0, type.find(':'))},
          {"range", facts.range.words()},
          {"bounds", bounds_of(facts.range)},
          {"default", option.get_default_str()},
          {"flag", flag},
          {"several", option.get_items_expected_max() > option.get_type_size_min() ||
                          option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll},
          {"required", option.get_required()},
          {"positional", option.get_positional()},
          {"choices", words_of(facts.choices)},
          {"suggestions", words_of(facts.suggestions)},
          {"path", is_path                          ? "file"
                   : facts.path == PathKind::folder ? "folder"
                                                    : ""},
          {"saved", facts.at_restart == AtRestart::saved},
          {"belongs_to", facts.depends_on},
          {"unit", facts.unit}};
}

}  // namespace

std::string NumberRange::words() const {
  if (from && to) return fmt::format("{} to {}", *from, *to);
  std::string all;
  const auto add = [&](const char* what, std::optional<double> bound) {
    if (bound) all += fmt::format("{}{} {}", all.empty() ? "" : " and ", what, *bound);
  };
  add("at least", from);
  add("more than", above);
  add("at most", to);
  add("less than", below);
  return all;
}

bool NumberRange::holds(double value) const {
  return !(from && value < *from) && !(above && value <= *above) && !(to && value > *to) && !(below && value >= *below);
}

std::string spellings(const std::string& names) {
  std::string all;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    if (!all.empty()) all += ",";
    if (word.starts_with('-') || word.starts_with('!')) {
      all += word;
      continue;
    }
    auto underscored = word;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    all += "--" + word + (underscored == word ? "" : ",--" + underscored);
  }
  return all;
}

OptionTable::OptionTable(std::string description, std::string name)
    : CLI::App(std::move(description), std::move(name)) {
  option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  config_formatter(std::make_shared<ConfigFile>());
  allow_config_extras(CLI::config_extras_mode::error);
}

CLI::Option* OptionTable::enter(CLI::Option* option, const OptionFacts& facts) {
  facts_[option] = facts;
  if (facts.default_text) option->default_str(*facts.default_text);
  if (facts.is_size) option->transform(CLI::AsSizeValue(false));
  if (auto check = number_check(option->get_type_name(), facts)) option->transform(CLI::Validator(check, ""));
  if (!facts.range.words().empty()) option->check(range_check(facts.range));
  return option->group(section_);
}

const OptionFacts& OptionTable::facts(const CLI::Option* option) const {
  static const OptionFacts none;
  const auto found = facts_.find(option);
  return found == facts_.end() ? none : found->second;
}

void OptionTable::set_short_help(std::vector<std::pair<std::string, std::string>> rows) {
  for (const auto& [typed, words] : rows) (void)get_option(typed.substr(0, typed.find(' ')));  // throws where none is
  short_help_ = std::move(rows);
  set_help_all_flag("--help-all", "print all options and exit");
}

std::string OptionTable::help_text() const {
  if (short_help_.empty()) return help();
  const auto formatter = std::dynamic_pointer_cast<const CLI::Formatter>(get_formatter());
  auto text = get_description() + "\n" + (formatter == nullptr ? "" : formatter->make_usage(this, get_name()));
  std::size_t width = 0;
  for (const auto& row : short_help_) width = std::max(width, row.first.size());
  for (const auto& [typed, words] : short_help_) text += fmt::format("  {:<{}}  {}\n", typed, width, words);
  const auto all = get_options([](const CLI::Option* option) { return !option->get_group().empty(); }).size();
  return text + fmt::format("All {} options and their defaults: {} --help-all\n", all, get_name());
}

void OptionTable::set(const std::string& name, const std::string& value) {
  auto* option = get_option(name);
  option->clear();
  option->add_result(value);
  option->run_callback();
}

std::string OptionTable::describe() {
  const auto formatter = std::dynamic_pointer_cast<const CLI::Formatter>(get_formatter());
  const auto usage = formatter == nullptr ? std::string() : formatter->make_usage(this, get_name());
  nlohmann::json out{{"name", get_name()},      {"description", get_description()},
                     {"usage", usage},          {"footer", get_footer()},
                     {"version", FSDP_VERSION}, {"options", nlohmann::json::array()}};
  for (const auto* option : get_options()) {
    if (!option->get_group().empty()) out["options"].push_back(describe_option(*option, facts(option)));
  }
  for (const auto& variable : variables()) {
    out["variables"].push_back({{"name", variable.name},
                                {"reader", name_of(variable.reader)},
                                {"meaning", variable.meaning},
                                {"choices", words_of(std::string(variable.choices))},
                                {"page", variable.page}});
  }
  return out.dump(1) + "\n";
}

}  // namespace fsdp
