#pragma once
// Tables of names and values, for options with a few choices. The first name of a value is its canonical name.
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/types/error.hpp"

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

/// The values of a table, each once and in its order: what `for` runs over to reach every value.
template <const auto& table>
constexpr auto distinct_values() {
  constexpr auto is_first = [](std::size_t i) {
    for (std::size_t before = 0; before < i; ++before) {
      if (table[before].value == table[i].value) return false;
    }
    return true;
  };
  constexpr auto count = [&] {
    std::size_t n = 0;
    for (std::size_t i = 0; i < table.size(); ++i) n += is_first(i) ? 1 : 0;
    return n;
  }();
  std::array<decltype(table.front().value), count> values{};
  for (std::size_t i = 0, n = 0; i < table.size(); ++i) {
    if (is_first(i)) values[n++] = table[i].value;
  }
  return values;
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
