#include "apps/number_checks.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {
namespace {

constexpr const char* kAnySign = "any sign";  // the mark of may_be_negative(): a validator of that name

bool has_any_sign(CLI::Option& option) {
  try {
    return option.get_validator(kAnySign) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

std::string_view without_plus(std::string_view text) { return text.substr(text.starts_with('+') ? 1 : 0); }

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
  if (error != std::errc() || end != digits.data() + digits.size()) return fmt::format("'{}' is no whole number", text);
  text = std::to_string(value);  // CLI11 would take 010 for 8
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

/// A whole number with a unit behind it.
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

void check_numbers(CLI::App& app) {
  for (auto* option : app.get_options()) {
    const auto type = option->get_type_name();
    const bool any_sign = has_any_sign(*option);
    std::function<std::string(std::string&)> check;
    if (type.find("SIZE") != std::string::npos) {
      check = [](const std::string& text) { return problem_with_size(text); };
    } else if (type.starts_with("INT")) {
      check = [any_sign](std::string& text) { return problem_with_integer<std::int64_t>(text, any_sign); };
    } else if (type.starts_with("UINT")) {
      check = [](std::string& text) { return problem_with_integer<std::uint64_t>(text, false); };
    } else if (type.starts_with("FLOAT")) {
      check = [any_sign](const std::string& text) { return problem_with_real(text, any_sign); };
    } else {
      continue;
    }
    option->transform(CLI::Validator(check, ""));  // before all other checks
  }
}

}  // namespace fsdp
