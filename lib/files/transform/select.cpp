// Which tensors and values of a checkpoint are written, and under which names.
#include <algorithm>
#include <regex>
#include <string_view>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/select_model.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {
namespace {

/// '*' matches any characters, dots too, '?' one; everything else itself.
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

/// std::regex recurses once per character it looks at.
constexpr std::size_t kLongestName = 4096;

class Renamer {
 public:
  explicit Renamer(const std::vector<std::pair<std::string, std::string>>& rules) {
    for (const auto& [pattern, replacement] : rules) {
      try {
        rules_.emplace_back(std::regex(pattern, std::regex::ECMAScript), replacement);
      } catch (const std::regex_error& error) {
        throw UsageError("--rename '" + pattern + "=" + replacement + "': not a regular expression: " + error.what());
      }
    }
  }

  void apply(std::string& name, StatePath& path) const {
    if (rules_.empty()) return;
    if (name.size() > kLongestName) {
      throw UsageError("--rename: the name \"" + name.substr(0, 64) + "...\" is longer than " +
                       std::to_string(kLongestName) + " characters");
    }
    auto renamed = name;
    for (const auto& [pattern, replacement] : rules_) renamed = std::regex_replace(renamed, pattern, replacement);
    if (renamed == name) return;
    // The containers that both names share stay.
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
        throw UsageError("--include and --exclude need a pattern such as 'transformer.h.*', not an empty one");
      }
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
      // Of the values only a module's extra state is part of the model.
      const bool in_model = !model.prefix.empty() && value.name.starts_with(model.prefix);
      if (!chosen(value.name) || (options.model_only && !in_model)) continue;
      strip_prefix(model.prefix, value.name, value.path);
      renamer.apply(value.name, value.path);
      add_value(i, std::move(value));
    }
    if (tensors_.empty() && values_.empty()) throw UsageError(nothing_left(options));
    check_unique_names(*this);
  }

 private:
  std::string nothing_left(const SelectOptions& options) const {
    std::string text = "nothing is left to write";
    if (!options.include.empty() || !options.exclude.empty()) text += ": --include and --exclude match against names";
    if (options.model_only) text += "; --model-only keeps the model's tensors only";
    if (!inner_->tensors().empty()) text += "; the first name is \"" + inner_->tensors().front().name + "\"";
    return text;
  }
};

}  // namespace

std::unique_ptr<Source> select(std::shared_ptr<const Source> source, const SelectOptions& options) {
  return std::make_unique<SelectSource>(std::move(source), options);
}

}  // namespace fsdp
