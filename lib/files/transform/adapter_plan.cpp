#include "lib/files/transform/adapter_plan.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/run_values.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/models/config/adapter_config.hpp"

namespace fsdp {
namespace {

using Part = std::optional<std::size_t> AdapterParts::*;

/// The suffixes of tensor names after the name of the module. peft writes the first suffix of each part and also reads
/// the others, as they occur in a state dict of its model.
constexpr std::array<std::pair<std::string_view, Part>, 7> kParts{
    {{".lora_A.weight", &AdapterParts::a},
     {".lora_B.weight", &AdapterParts::b},
     {".lora_magnitude_vector", &AdapterParts::magnitude},
     {".lora_A.default.weight", &AdapterParts::a},
     {".lora_B.default.weight", &AdapterParts::b},
     {".lora_magnitude_vector.weight", &AdapterParts::magnitude},
     {".lora_magnitude_vector.default.weight", &AdapterParts::magnitude}}};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

/// Matches like Python's re.fullmatch().
class FullMatch {
 public:
  FullMatch(const std::string& pattern, std::string where) : where_(std::move(where)), pattern_(pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const auto* text = reinterpret_cast<PCRE2_SPTR>(pattern.data());
    // Python reads {,3} as {0,3}; PCRE2 takes {,3} for text.
    if (pattern.find("{,") == std::string::npos)
      code_.reset(pcre2_compile(text, pattern.size(), PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr));
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
        fmt::format("{}: target_modules is '{}', a regular expression that cannot be read from byte {} on", where_,
                    pattern_, offset));
  }

  std::string where_, pattern_;
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
};

bool is_named_by(const std::vector<std::string>& targets, const std::string& module) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return module == target || module.ends_with("." + target); });
}

/// The modules of the base that target_modules names. \param where  adapter_config.json, for messages
std::set<std::string> targeted(const AdapterConfig& config, const std::vector<BaseModule>& base,
                               const std::string& where) {
  std::optional<FullMatch> pattern;
  if (!config.pattern.empty()) pattern.emplace(config.pattern, where);
  std::set<std::string> found;
  for (const auto& module : base) {
    const bool is_named = config.all_linear ? module.can_have_adapter && module.is_in_block
                          : pattern         ? (*pattern)(module.name)
                                            : is_named_by(config.lora.targets, module.name);
    if (!is_named) continue;
    if (!module.can_have_adapter)
      throw FormatError(
          fmt::format("{}: target_modules names '{}', which can have no adapter here: matrices of the "
                      "blocks can",
                      where, module.name));
    if (!module.other_type.empty())
      throw FormatError(
          fmt::format("{}: the base's tensor \"{}.weight\" is {}, and an adapter can be added to "
                      "floating-point numbers alone",
                      where, module.name, module.other_type));
    found.insert(module.name);
  }
  if (found.empty()) throw FormatError(where + ": target_modules names no module of the base");
  return found;
}

bool acts_in_training_alone(const AdapterConfig& config, std::string_view name) {
  return std::any_of(config.training_parts.begin(), config.training_parts.end(),
                     [&](const auto& part) { return name.find(part) != std::string_view::npos; });
}

/// The parts of the adapter of every module in the file. \throws FormatError naming a tensor that is not part of an
/// adapter
std::map<std::string, AdapterParts> find_parts(const AdapterPlan& plan, const AdapterConfig& config,
                                               const std::set<std::string>& modules) {
  std::map<std::string, AdapterParts> parts;
  for (std::size_t i = 0; i < plan.source->tensors().size(); ++i) {
    std::string_view name = plan.source->tensors()[i].name;
    const auto refuse = [&](const char* why) {
      return FormatError(fmt::format("{}: tensor \"{}\" {}", plan.file.string(), plan.source->tensors()[i].name, why));
    };
    if (acts_in_training_alone(config, name)) continue;
    const auto part =
        std::find_if(kParts.begin(), kParts.end(), [&](const auto& known) { return name.ends_with(known.first); });
    if (!name.starts_with(kAdapterPrefix) || part == kParts.end())
      throw refuse("is no part of an adapter of a matrix, and nothing else is supported");
    name.remove_prefix(std::string_view(kAdapterPrefix).size());
    name.remove_suffix(part->first.size());
    if (!modules.contains(std::string(name))) throw refuse("belongs to a module that the base does not have");
    auto& place = parts[std::string(name)].*(part->second);
    if (place) throw refuse("is there under another name, too");
    place = i;
  }
  if (parts.empty()) throw FormatError(plan.file.string() + ": holds no adapter");
  return parts;
}

void check_whole(const std::string& module, const AdapterParts& parts, bool dora, const std::string& file) {
  const auto wrong = [&](const char* what) {
    return FormatError(fmt::format("{}: the adapter of {} {}", file, module, what));
  };
  if (!parts.a || !parts.b) throw wrong("lacks its lora_A or its lora_B");
  if (dora != parts.magnitude.has_value())
    throw wrong("has a lora_magnitude_vector where adapter_config.json says use_dora false, or the reverse");
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> shown(names.begin(), names.begin() + std::min(kShown, names.size()));
  return fmt::format("{} ({}{})", names.size(), fmt::join(shown, ", "), names.size() > kShown ? ", ..." : "");
}

std::filesystem::path weights_of(const std::filesystem::path& directory) {
  std::error_code error;
  const bool is_pickle = !std::filesystem::exists(directory / kAdapterWeights, error) &&
                         std::filesystem::exists(directory / kAdapterPickle, error);
  return directory / (is_pickle ? kAdapterPickle : kAdapterWeights);
}

/// The adapters of a checkpoint of fsdp-finetune, named as in peft's files.
std::shared_ptr<const Source> with_names_of_peft(std::shared_ptr<const Source> checkpoint) {
  SelectOptions adapters;
  adapters.include = {"model.*"};
  adapters.rename.emplace_back("^model\\.", kAdapterPrefix);
  return select(std::move(checkpoint), adapters);
}

}  // namespace

std::vector<BaseModule> base_modules(const ModelConfig& config) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<BaseModule> modules;
  const auto add = [&](std::string_view name, bool is_matrix_of_block) {
    if (!name.ends_with(kWeight)) return;
    name.remove_suffix(kWeight.size());
    modules.push_back({std::string(name), is_matrix_of_block, is_matrix_of_block});
  };
  for (const auto& spec : parameter_table(config)) add(spec.name, spec.is_matrix_of_block());
  for (const auto& [alias, name] : tied_names(config)) add(alias, false);
  return modules;
}

AdapterPlan plan_adapter(const std::filesystem::path& given, const std::vector<BaseModule>& base) {
  const auto directory = checkpoint_in_run(given);
  std::error_code error;
  const auto run =
      std::filesystem::exists(directory / kAdapterConfig, error) ? nlohmann::json() : adapters_of_run(directory);
  const auto where = (directory / (run.is_null() ? kAdapterConfig : "run.json")).string();
  const auto config = run.is_null() ? read_adapter_config(directory) : adapter_config_from_json(run["adapter"], where);
  const auto targets = targeted(config, base, where);
  std::set<std::string> modules;
  for (const auto& module : base) modules.insert(module.name);
  AdapterPlan plan;
  plan.lora = config.lora;
  plan.lora.targets.clear();
  plan.file = run.is_null() ? weights_of(directory) : directory;
  plan.source = open_source(plan.file);
  if (!run.is_null()) plan.source = with_names_of_peft(std::move(plan.source));
  std::vector<std::string> not_named;
  for (const auto& [module, parts] : find_parts(plan, config, modules)) {
    if (!targets.contains(module)) {
      not_named.push_back(module);
      continue;
    }
    check_whole(module, parts, config.lora.dora, plan.file.string());
    plan.parts.emplace(module, parts);
    plan.lora.targets.push_back(module);
  }
  if (plan.parts.empty())
    throw FormatError(
        fmt::format("{}: target_modules names none of the {} modules that {} has an adapter of, such as {}", where,
                    not_named.size(), plan.file.filename().string(), not_named.front()));
  std::vector<std::string> without;
  for (const auto& module : targets) {
    if (!plan.parts.contains(module)) without.push_back(module);
  }
  if (config.starts_by_chance && !without.empty())
    throw FormatError(
        fmt::format("{}: has no adapter of {}, which target_modules names, and init_lora_weights is false: "
                    "peft would begin it by chance",
                    plan.file.string(), without.front()));
  if (!not_named.empty())
    plan.remarks.push_back(
        fmt::format("{}: target_modules does not name modules that the file has an adapter of, so "
                    "as in peft these do not act: {}",
                    where, first_of(not_named)));
  if (!config.training_parts.empty())
    plan.remarks.push_back(where +
                           ": velora_config and monteclora_config change how an adapter is trained, not what it "
                           "computes; training here goes on without them");
  if (!without.empty())
    plan.remarks.push_back(
        fmt::format("{}: has no adapter of modules that target_modules names, so they stay as the "
                    "base has them: {}",
                    plan.file.string(), first_of(without)));
  return plan;
}

}  // namespace fsdp
