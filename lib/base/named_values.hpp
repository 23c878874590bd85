#pragma once
// Tables of names and values, for options with a few choices. The first name of a value is its canonical name.
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/error.hpp"

namespace fsdp {

template <typename Value>
struct NamedValue {
  std::string_view text;
  Value value;
  bool is_listed = true;  ///< false: a further spelling, which the list of choices leaves out
};

template <typename Table>
auto find_value(const Table& table, std::string_view text) -> std::optional<decltype(table.front().value)> {
  for (const auto& named : table) {
    if (named.text == text) return named.value;
  }
  return std::nullopt;
}

template <typename Table>
std::string_view name_of(const Table& table, decltype(Table::value_type::value) wanted) {
  for (const auto& named : table) {
    if (named.value == wanted) return named.text;
  }
  return "?";
}

/// The choices as messages and --describe-options list them: "auto, cpu, cuda".
template <typename Table>
std::string choices_of(const Table& table) {
  std::string words;
  for (const auto& named : table) {
    if (named.is_listed) words += (words.empty() ? "" : ", ") + std::string(named.text);
  }
  return words;
}

/// \param option  with its dashes. \throws UsageError naming `option` and the choices
template <typename Table>
auto parse_value(const Table& table, std::string_view text, std::string_view option) {
  const auto value = find_value(table, text);
  if (!value)
    throw UsageError(std::string(option) + " is '" + std::string(text) + "', choose from " + choices_of(table));
  return *value;
}

}  // namespace fsdp
