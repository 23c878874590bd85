#include "lib/models/config/adapter_rules.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace detail {

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

/// Matches like Python's re.fullmatch().
class FullMatch {
 public:
  /// \param where  file and field, for messages
  FullMatch(std::string pattern, std::string where) : where_(std::move(where)), pattern_(std::move(pattern)) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const auto* text = reinterpret_cast<PCRE2_SPTR>(pattern_.data());
    // Python reads {,3} as {0,3}; PCRE2 takes {,3} for text.
    if (pattern_.find("{,") == std::string::npos)
      code_.reset(pcre2_compile(text, pattern_.size(), PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr));
    if (!code_) refuse(offset);
    match_.reset(pcre2_match_data_create(1, nullptr));
    if (!match_) throw std::bad_alloc();
  }

  bool operator()(const std::string& name) const {
    const auto* text = reinterpret_cast<PCRE2_SPTR>(name.data());
    const int found = pcre2_match(code_.get(), text, name.size(), 0, 0, match_.get(), nullptr);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) refuse(0);
    return found >= 0;
  }

 private:
  [[noreturn]] void refuse(std::size_t offset) const {
    throw FormatError(
        fmt::format("{} is '{}', a regular expression that cannot be read from byte {} on", where_, pattern_, offset));
  }

  std::string where_, pattern_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
};

}  // namespace detail

namespace {

bool is_named_by(const std::vector<std::string>& names, const std::string& module) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

/// A list of names, or the expression that it is (LoraConfig::targets).
std::unique_ptr<detail::FullMatch> pattern_of(const std::vector<std::string>& list, const std::string& where) {
  if (std::none_of(list.begin(), list.end(), is_name_pattern)) return nullptr;
  return std::make_unique<detail::FullMatch>(fmt::format("{}", fmt::join(list, ",")), where);
}

template <typename Value>
std::vector<detail::FullMatch> keys_of(const std::vector<std::pair<std::string, Value>>& patterns,
                                       const std::string& where) {
  std::vector<detail::FullMatch> keys;
  for (const auto& [key, value] : patterns) keys.emplace_back("(.*\\.)?(" + key + ")", where);
  return keys;
}

/// \return the value of the first pattern that matches; otherwise `value`
template <typename Value>
Value first_match(const std::vector<detail::FullMatch>& keys,
                  const std::vector<std::pair<std::string, Value>>& patterns, const std::string& module, Value value) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i](module)) return patterns[i].second;
  }
  return value;
}

/// The last number in a name that has two names before it, the nearer of them `pattern` unless that is empty, and a
/// name after it: 3 of model.layers.3.mlp.up_proj.
std::optional<std::int64_t> layer_of(const std::string& module, const std::string& pattern) {
  for (auto end = module.rfind('.'); end != std::string::npos && end > 0; end = module.rfind('.', end - 1)) {
    const auto begin = module.rfind('.', end - 1);
    if (begin == std::string::npos) break;
    std::int64_t number = 0;
    const auto* last = module.data() + end;
    const auto read = std::from_chars(module.data() + begin + 1, last, number);
    if (read.ec != std::errc() || read.ptr != last || module[begin + 1] == '-') continue;
    const auto before = std::string_view(module).substr(0, begin);
    const bool is_there =
        pattern.empty() ? before.find('.') != std::string_view::npos : before.ends_with("." + pattern);
    if (is_there) return number;
  }
  return std::nullopt;
}

}  // namespace

LoraRules::LoraRules(const LoraConfig& lora, std::string where) : lora_(lora) {
  all_ = std::any_of(lora.targets.begin(), lora.targets.end(),
                     [](const auto& target) { return target == "all" || target == "all-linear"; });
  targets_ = all_ ? nullptr : pattern_of(lora.targets, where + ": target_modules");
  excluded_ = pattern_of(lora.exclude, where + ": exclude_modules");
  if (!all_ && targets_ == nullptr) names_ = lora.targets;
  ranks_ = keys_of(lora.rank_pattern, where + ": a key of rank_pattern");
  alphas_ = keys_of(lora.alpha_pattern, where + ": a key of alpha_pattern");
  if (targets_ != nullptr && !lora.layers.empty())
    throw FormatError(where + ": layers_to_transform needs target_modules to be names, and it is an expression");
}

LoraRules::LoraRules(LoraRules&&) noexcept = default;
LoraRules::~LoraRules() = default;

bool LoraRules::is_excluded(const std::string& module) const {
  return excluded_ != nullptr ? (*excluded_)(module) : is_named_by(lora_.exclude, module);
}

bool LoraRules::is_in_layers(const std::string& module) const {
  if (lora_.layers.empty()) return true;
  std::optional<std::int64_t> layer;
  if (lora_.layers_patterns.empty()) layer = layer_of(module, "");
  for (std::size_t i = 0; i < lora_.layers_patterns.size() && !layer; ++i)
    layer = layer_of(module, lora_.layers_patterns[i]);
  return layer && std::find(lora_.layers.begin(), lora_.layers.end(), *layer) != lora_.layers.end();
}

bool LoraRules::is_target(const std::string& module, bool is_matrix_of_block) const {
  if (is_excluded(module)) return false;
  const auto holds = [&](const std::string& saved) {
    return ("." + module + ".").find("." + saved + ".") != std::string::npos;
  };
  if (std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(), holds)) return false;
  if (all_) return is_matrix_of_block && is_in_layers(module);
  if (targets_ != nullptr) return (*targets_)(module);
  // A module that is named in full is taken whatever its layer.
  if (std::find(names_.begin(), names_.end(), module) != names_.end()) return true;
  return is_named_by(names_, module) && is_in_layers(module);
}

bool LoraRules::is_saved(const std::string& parameter) const {
  for (auto end = parameter.rfind('.'); end != std::string::npos && end > 0; end = parameter.rfind('.', end - 1)) {
    const auto module = std::string_view(parameter).substr(0, end);
    if (std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(),
                    [&](const std::string& name) { return module.ends_with(name); }))
      return true;
  }
  return false;
}

LoraModule LoraRules::module(const std::string& name) const {
  LoraModule made;
  made.rank = first_match(ranks_, lora_.rank_pattern, name, lora_.rank);
  made.alpha = first_match(alphas_, lora_.alpha_pattern, name, lora_.alpha);
  made.scale = lora_.scale(made.rank, made.alpha);
  return made;
}

}  // namespace fsdp
