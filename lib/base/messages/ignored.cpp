#include "lib/base/messages/ignored.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/messages/log.hpp"

namespace fsdp {
namespace {

/// "model.layers.*.bias" for "model.layers.3.bias".
std::string without_numbers(const std::string& name) {
  std::string result;
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    result += (begin == 0 ? "" : ".") + (is_number ? "*" : part);
    begin = end + 1;
  }
  return result;
}

}  // namespace

void Ignored::add(const std::string& where, const std::vector<std::string>& names) {
  for (const auto& name : names) names_[where].insert(without_numbers(name));
}

void Ignored::add(const Ignored& other) {
  for (const auto& [where, names] : other.names_) names_[where].insert(names.begin(), names.end());
}

void Ignored::add_files(const std::filesystem::path& directory, const std::set<std::string>& used) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with('.') && !used.contains(name)) names_[directory.string()].insert(name);
  }
}

std::vector<std::string> Ignored::lines() const {
  constexpr std::size_t kMostShown = 12;
  std::vector<std::string> lines;
  for (const auto& [where, names] : names_) {
    std::map<std::string, std::size_t> groups;  // by the first part of the name
    for (const auto& name : names) ++groups[name.substr(0, name.find('.'))];
    std::vector<std::string> shown;
    for (const auto& name : names) {
      const auto first = name.substr(0, name.find('.'));
      const auto count = groups.at(first);
      const bool as_group = names.size() > kMostShown && count > 1;
      auto text = as_group ? fmt::format("{}.* ({} names)", first, count) : name;
      if (shown.empty() || shown.back() != text) shown.push_back(std::move(text));
    }
    const auto more = shown.size() > kMostShown ? shown.size() - kMostShown : 0;
    shown.resize(shown.size() - more);
    lines.push_back(fmt::format("{}: {}{}", where, fmt::join(shown, ", "),
                                more > 0 ? fmt::format(", and {} more", more) : std::string()));
  }
  return lines;
}

nlohmann::json Ignored::to_json() const {
  auto json = nlohmann::json::object();
  for (const auto& [where, names] : names_) json[where] = names;
  return json;
}

void log_ignored(const Ignored& ignored, const Logger& log) {
  for (const auto& line : ignored.lines()) log.info("ignored   " + line);
}

}  // namespace fsdp
