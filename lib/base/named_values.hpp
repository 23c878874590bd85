#pragma once
// Tables of names and values, for options with a few choices. The first name of a value is its canonical name.
#include <optional>
#include <string_view>

namespace fsdp {

template <typename Value>
struct NamedValue {
  std::string_view text;
  Value value;
};

template <typename Table>
auto find_value(const Table& table, std::string_view text) -> std::optional<decltype(table.front().value)> {
  for (const auto& [word, value] : table) {
    if (word == text) return value;
  }
  return std::nullopt;
}

template <typename Table>
std::string_view name_of(const Table& table, decltype(Table::value_type::value) wanted) {
  for (const auto& [word, value] : table) {
    if (value == wanted) return word;
  }
  return "?";
}

}  // namespace fsdp
