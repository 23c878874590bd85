#include "lib/models/config/trainable.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

/// \return for each parameter the names that patterns can match; empty if the parameter cannot be selected
std::vector<std::vector<std::string>> names_to_choose(const std::vector<ParameterSpec>& table,
                                                      const std::vector<std::pair<std::string, std::string>>& tied,
                                                      bool adapters) {
  std::vector<std::vector<std::string>> names;
  for (const auto& spec : table) {
    names.emplace_back();
    if (spec.is_trained_with_adapter() != adapters || spec.stands_for >= 0) continue;
    names.back().push_back(spec.name);
    for (const auto& [alias, original] : tied) {
      if (original == spec.name) names.back().push_back(alias);
    }
  }
  return names;
}

/// Calls chosen(i) for each parameter that a pattern matches. \param whole  owner of the parameters, for messages
template <typename Chosen>
void for_matches(const std::vector<std::vector<std::string>>& names, const std::vector<std::string>& patterns,
                 Remedy option, const char* whole, const Chosen& chosen) {
  for (const auto& pattern : patterns) {
    if (pattern.empty()) continue;
    bool found = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::none_of(names[i].begin(), names[i].end(),
                       [&](const auto& name) { return matches_parameter(pattern, name); }))
        continue;
      chosen(i);
      found = true;
    }
    if (found) continue;
    const auto first = std::find_if(names.begin(), names.end(), [](const auto& some) { return !some.empty(); });
    const auto last = std::find_if(names.rbegin(), names.rend(), [](const auto& some) { return !some.empty(); });
    throw RequestError(fmt::format("'{}' matches no parameter of the {}, whose names are {}, ..., {}", pattern, whole,
                                   first->front(), last->front()),
                       option);
  }
}

bool has_words(const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [](const auto& pattern) { return !pattern.empty(); });
}

}  // namespace

bool matches_parameter(std::string_view pattern, const std::string& name) {
  const std::string glob(pattern);
  for (auto end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1)) {
    if (::fnmatch(glob.c_str(), name.substr(0, end).c_str(), 0) == 0) return true;
  }
  return false;
}

std::vector<bool> trainable_parameters(const std::vector<ParameterSpec>& table,
                                       const std::vector<std::pair<std::string, std::string>>& tied,
                                       const FreezeOptions& options) {
  const bool adapters =
      std::any_of(table.begin(), table.end(), [](const auto& spec) { return spec.is_trained_with_adapter(); });
  const auto names = names_to_choose(table, tied, adapters);
  std::vector<bool> trainable;
  for (const auto& some : names) trainable.push_back(!some.empty() && !has_words(options.train_only));
  const auto* whole = adapters ? "adapters" : "model";
  for_matches(names, options.train_only, Remedy::of_train_only, whole, [&](std::size_t i) { trainable[i] = true; });
  for_matches(names, options.freeze, Remedy::of_freeze, whole, [&](std::size_t i) { trainable[i] = false; });
  if (std::find(trainable.begin(), trainable.end(), true) == trainable.end())
    throw RequestError("no parameter to train is left", Remedy::of_frozen);
  return trainable;
}

std::vector<bool> trainable_parameters(const ModelConfig& config, const FreezeOptions& options) {
  return trainable_parameters(parameter_table(config), tied_names(config), options);
}

std::int64_t num_trained(const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < table.size(); ++i) total += trainable[i] ? num_parameters({table[i]}) : 0;
  return total;
}

FreezeOptions saved_freeze_options(const nlohmann::json& options) {
  const auto words = [&](const char* name) {
    const auto found = options.is_object() ? options.find(name) : options.end();
    if (!options.is_object() || found == options.end() || !found->is_string()) return std::vector<std::string>();
    std::istringstream text(found->get<std::string>());
    return std::vector<std::string>(std::istream_iterator<std::string>(text), {});
  };
  return {words("train-only"), words("freeze")};
}

}  // namespace fsdp
