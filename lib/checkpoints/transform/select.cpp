// Selects the tensors and values of a checkpoint that are written, and renames them.
#include "lib/checkpoints/transform/select.hpp"

#include <algorithm>
#include <array>
#include <regex>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/transform/transform.hpp"

namespace fsdp {
namespace {

constexpr std::array<std::string_view, 5> kContainers{"model", "model_state", "model_state_dict", "state_dict",
                                                      "module"};
constexpr std::array<std::string_view, 20> kOther{"optim",
                                                  "optimizer",
                                                  "optimizer_state",
                                                  "optimizer_state_dict",
                                                  "optim_state",
                                                  "optimizers",
                                                  "optimizer_states",
                                                  "lr_scheduler",
                                                  "lr_schedulers",
                                                  "scheduler",
                                                  "schedulers",
                                                  "scheduler_state",
                                                  "scheduler_state_dict",
                                                  "rng",
                                                  "rng_state",
                                                  "rng_states",
                                                  "dataloader",
                                                  "train_state",
                                                  "run",
                                                  "scaler"};

/// The first element of a nested path; null when there is no nesting.
const std::string* container_of(const StatePath& path) {
  return path.size() > 1 ? std::get_if<std::string>(&path.front()) : nullptr;
}

/// True for module names of models whose own names begin with "model.".
bool is_own_name(std::string_view name) {
  return name.starts_with("model.layers.") || name.starts_with("model.embed_tokens.") ||
         name.starts_with("model.decoder.");
}

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

/// Glob match: '*' matches any characters, dots included, '?' matches one character.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, name); });
}

/// Limit on names: std::regex recurses for every character that it reads.
constexpr std::size_t kLongestName = 4096;

class Renamer {
 public:
  explicit Renamer(const std::vector<std::pair<std::string, std::string>>& rules) {
    for (const auto& [pattern, replacement] : rules) {
      try {
        rules_.emplace_back(std::regex(pattern, std::regex::ECMAScript), replacement);
      } catch (const std::regex_error& error) {
        throw RequestError(
            "renaming by '" + pattern + "=" + replacement + "': not a regular expression: " + error.what(),
            Remedy::of_rename);
      }
    }
  }

  void apply(std::string& name, StatePath& path) const {
    if (rules_.empty()) return;
    if (name.size() > kLongestName) {
      throw RequestError("renaming: the name \"" + name.substr(0, 64) + "...\" is longer than " +
                             std::to_string(kLongestName) + " characters",
                         Remedy::of_rename);
    }
    auto renamed = name;
    for (const auto& [pattern, replacement] : rules_) renamed = std::regex_replace(renamed, pattern, replacement);
    if (renamed == name) return;
    // Keep the containers that both names share.
    StatePath kept;
    std::size_t length = 0;
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      const auto* text = std::get_if<std::string>(&path[i]);
      const auto part = (text != nullptr ? *text : std::to_string(std::get<std::int64_t>(path[i]))) + ".";
      if (name.compare(length, part.size(), part) != 0 || renamed.compare(length, part.size(), part) != 0 ||
          renamed.size() <= length + part.size()) {
        break;
      }
      length += part.size();
      kept.push_back(path[i]);
    }
    kept.emplace_back(renamed.substr(length));
    name = std::move(renamed);
    path = std::move(kept);
  }

 private:
  std::vector<std::pair<std::regex, std::string>> rules_;
};

class SelectSource final : public DecoratedSource {
 public:
  SelectSource(std::shared_ptr<const Source> source, const SelectOptions& options)
      : DecoratedSource(std::move(source)) {
    for (const auto* patterns : {&options.include, &options.exclude}) {
      if (std::find(patterns->begin(), patterns->end(), "") != patterns->end()) {
        throw RequestError("a pattern of names is empty: one such as 'transformer.h.*' is needed", Remedy::of_patterns);
      }
    }
    if (options.must_match) {
      require_match(options.include, Remedy::of_include);
      require_match(options.exclude, Remedy::of_exclude);
    }
    const auto chosen = [&](const std::string& name) {
      return (options.include.empty() || matches_any(options.include, name)) && !matches_any(options.exclude, name);
    };
    const Renamer renamer(options.rename);
    const auto model = options.model_only ? model_part(*inner_) : ModelPart{};
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (!chosen(tensor.name) || (options.model_only && !model.contains[i])) continue;
      strip_prefix(model.prefix, tensor.name, tensor.path);
      renamer.apply(tensor.name, tensor.path);
      add_tensor(i, std::move(tensor));
    }
    for (std::size_t i = 0; i < inner_->values().size(); ++i) {
      auto value = inner_->values()[i];
      // Among values only the extra state of a module is part of the model.
      const bool in_model = !model.prefix.empty() && value.name.starts_with(model.prefix);
      if (!chosen(value.name) || (options.model_only && !in_model)) continue;
      strip_prefix(model.prefix, value.name, value.path);
      renamer.apply(value.name, value.path);
      add_value(i, std::move(value));
    }
    if (tensors_.empty() && values_.empty()) throw RequestError(nothing_left(options), Remedy::of_selection);
    check_unique_names(*this);
  }

 private:
  void require_match(const std::vector<std::string>& patterns, Remedy remedy) const {
    const auto is_met = [](const auto& entries, const std::string& pattern) {
      return std::any_of(entries.begin(), entries.end(),
                         [&](const auto& entry) { return matches(pattern, entry.name); });
    };
    for (const auto& pattern : patterns) {
      if (is_met(inner_->tensors(), pattern) || is_met(inner_->values(), pattern)) continue;
      throw RequestError(
          "'" + pattern + "' matches no name" +
              (inner_->tensors().empty() ? "" : ": the first is \"" + inner_->tensors().front().name + "\""),
          remedy);
    }
  }

  std::string nothing_left(const SelectOptions& options) const {
    std::string text = "nothing is left to write";
    if (!options.include.empty() || !options.exclude.empty()) text += ": patterns match against names";
    if (options.model_only) text += "; only the model's tensors are kept";
    if (!inner_->tensors().empty()) text += "; the first name is \"" + inner_->tensors().front().name + "\"";
    return text;
  }
};

}  // namespace

ModelPart model_part(const Source& source) {
  const auto& tensors = source.tensors();
  ModelPart part;
  part.contains.assign(tensors.size(), false);
  for (const auto candidate : kContainers) {
    bool found = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto* container = container_of(tensors[i].path);
      part.contains[i] = container != nullptr && *container == candidate;
      found = found || part.contains[i];
    }
    if (!found) continue;
    part.prefix = std::string(candidate) + ".";
    return part;
  }
  bool own_names = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto first = first_part(tensors[i].name);
    part.contains[i] = std::find(kOther.begin(), kOther.end(), first) == kOther.end();
    own_names = own_names || (part.contains[i] && is_own_name(tensors[i].name));
  }
  if (own_names) return part;
  // When the format has no nesting ("model.transformer.wte.weight" of a safetensors file), all names must agree.
  for (const auto candidate : kContainers) {
    const auto prefix = std::string(candidate) + ".";
    bool any = false, all = true;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!part.contains[i]) continue;
      any = true;
      all = all && tensors[i].name.size() > prefix.size() && tensors[i].name.starts_with(prefix);
    }
    if (any && all) part.prefix = prefix;
  }
  return part;
}

std::map<std::string, std::int64_t> containers_left_out(const Source& source) {
  std::map<std::string, std::int64_t> left;
  const auto part = model_part(source);
  for (std::size_t i = 0; i < part.contains.size() && !part.prefix.empty(); ++i) {
    const auto* container = container_of(source.tensors()[i].path);
    if (part.contains[i] || container == nullptr || std::ranges::find(kOther, *container) != kOther.end()) continue;
    ++left[*container];
  }
  return left;
}

void strip_prefix(const std::string& prefix, std::string& name, StatePath& path) {
  if (prefix.empty() || !name.starts_with(prefix)) return;
  name.erase(0, prefix.size());
  const auto* container = container_of(path);
  if (container != nullptr && *container + "." == prefix) {
    path.erase(path.begin());
  } else {
    path = {name};
  }
}

std::unique_ptr<Source> select(std::shared_ptr<const Source> source, const SelectOptions& options) {
  return std::make_unique<SelectSource>(std::move(source), options);
}

}  // namespace fsdp
