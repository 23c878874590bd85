#include "apps/common/number_checks.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {
namespace {

constexpr const char* kAnySign = "any sign";  // name of the validator with which may_be_negative() marks an option

constexpr const char* kOfLists = "of lists";  // name of the validator of says_of_lists()

bool has_mark(CLI::Option& option, const char* mark) {
  try {
    return option.get_validator(mark) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

std::string_view without_plus(std::string_view text) { return text.substr(text.starts_with('+') ? 1 : 0); }

bool is_list(const std::string& text) {
  return text.find(',') != std::string::npos && text.find_first_not_of("0123456789, ") == std::string::npos;
}

std::string of_list(const std::string& text) {
  return fmt::format("'{}' is a list, and one whole number is expected", text);
}

template <typename Integer>
std::string problem_with_integer(std::string& text, bool any_sign) {
  const auto digits = without_plus(text);
  std::int64_t negative = 0;
  if (!any_sign && std::from_chars(digits.data(), digits.data() + digits.size(), negative).ec == std::errc() &&
      negative < 0) {
    return fmt::format("{} is negative, give 0 or more", text);
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

std::string problem_with_real(const std::string& text, bool any_sign) {
  const auto digits = without_plus(text);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) return fmt::format("{} is beyond what a double can hold", text);
  if (error != std::errc() || end != digits.data() + digits.size()) return fmt::format("'{}' is no number", text);
  if (!std::isfinite(value)) return fmt::format("{} is not finite, give a number", text);
  if (value < 0 && !any_sign) return fmt::format("{} is negative, give 0 or more", text);
  return "";
}

/// Returns what is wrong with a whole number that is followed by a unit.
std::string problem_with_size(const std::string& text) {
  std::uint64_t value = 0;
  const auto error = std::from_chars(text.data(), text.data() + text.size(), value).ec;
  if (error == std::errc::result_out_of_range) return fmt::format("{} does not fit into 64 bits", text);
  return error == std::errc() ? "" : fmt::format("'{}' is no size, give a number of bytes such as 64MiB", text);
}

}  // namespace

CLI::Option* may_be_negative(CLI::Option* option) {
  return option->check(CLI::Validator([](const std::string&) { return std::string(); }, "", kAnySign));
}

CLI::Option* says_of_lists(CLI::Option* option, const std::string& instead) {
  const auto check = [instead](const std::string& text) {
    return is_list(text) ? of_list(text) + ": " + instead : std::string();
  };
  return option->transform(CLI::Validator(check, "", kOfLists));  // runs before the option's other checks
}

void check_numbers(CLI::App& app) {
  for (auto* option : app.get_options()) {
    const auto type = option->get_type_name();
    const bool any_sign = has_mark(*option, kAnySign), of_lists = has_mark(*option, kOfLists);
    std::function<std::string(std::string&)> check;
    if (type.find("SIZE") != std::string::npos) {
      check = [](const std::string& text) { return problem_with_size(text); };
    } else if (type.starts_with("INT")) {
      check = [any_sign, of_lists](std::string& text) {
        if (of_lists && is_list(text)) return std::string();  // the validator of says_of_lists() reports it
        return problem_with_integer<std::int64_t>(text, any_sign);
      };
    } else if (type.starts_with("UINT")) {
      check = [](std::string& text) { return problem_with_integer<std::uint64_t>(text, false); };
    } else if (type.starts_with("FLOAT")) {
      check = [any_sign](const std::string& text) { return problem_with_real(text, any_sign); };
    } else {
      continue;
    }
    option->transform(CLI::Validator(check, ""));  // runs before all other checks
  }
}

}  // namespace fsdp
