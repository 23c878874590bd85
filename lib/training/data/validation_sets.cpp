#include "lib/training/data/validation_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kNameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

/// End of the path that begins at `begin`: of the commas before a NAME= and the end of the text the first at which the
/// path exists, or else the first.
std::size_t end_of_path(const std::string& text, std::size_t begin) {
  auto first = std::string::npos;
  std::error_code error;
  for (auto comma = text.find(',', begin);; comma = text.find(',', comma + 1)) {
    const auto end = std::min(comma, text.size());
    if (end < text.size() && length_of_name(text, end + 1) == 0) continue;
    if (first == std::string::npos) first = end;
    if (std::filesystem::exists(text.substr(begin, end - begin), error)) return end;
    if (end == text.size()) return first;
  }
}

}  // namespace

std::size_t length_of_name(const std::string& text, std::size_t begin) {
  const auto end = text.find_first_not_of(kNameCharacters, begin);
  return end != std::string::npos && end > begin && text[end] == '=' ? end + 1 - begin : 0;
}

std::vector<ValidationSet> parse_validation_sets(const std::string& text, std::string_view option) {
  if (text.empty()) return {};
  std::error_code error;
  if (length_of_name(text, 0) == 0 || std::filesystem::exists(text, error)) return {{"", text}};
  std::vector<ValidationSet> sets;
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto length = length_of_name(text, begin);
    const auto end = end_of_path(text, begin + length);
    ValidationSet set{text.substr(begin, length - 1), text.substr(begin + length, end - begin - length)};
    if (set.path.empty()) throw RequestError(fmt::format("{} {}: {}= names no path", option, text, set.name));
    if (!names.insert(set.name).second)
      throw RequestError(fmt::format("{} {}: the name {} is there twice", option, text, set.name));
    sets.push_back(std::move(set));
    begin = end + 1;
  }
  return sets;
}

std::string validation_sets_text(const std::vector<ValidationSet>& sets) {
  std::string text;
  for (const auto& set : sets)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", set.name, set.name.empty() ? "" : "=", set.path);
  return text;
}

std::string hint_about_names(const ValidationSet& set) {
  if (set.path.find('=') == std::string::npos) return "";
  return "; several are NAME=PATH,NAME=PATH with names of letters, digits, '.', '_' and '-'";
}

}  // namespace fsdp
