#include "lib/models/config/adapter_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/models/config/adapter_rules.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config_fields.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMostRank = 1 << 14;

/// Returns "model.layers.0.self_attn.q_proj" for "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }
std::string last_parts(const std::string& module, int n) {
  auto dot = module.size();
  for (; n > 0 && dot != std::string::npos; --n) dot = module.rfind('.', dot - 1);
  return module.substr(dot + 1);
}

void validate(const LoraConfig& lora) {
  if (lora.rank > kMostRank)
    throw RequestError(fmt::format("lora-rank is {}, it can be at most {}", lora.rank, kMostRank),
                       {Remedy::of_option, "lora-rank"});
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
    throw RequestError(fmt::format("lora-alpha is {}, it must be greater than 0", lora.alpha),
                       {Remedy::of_option, "lora-alpha"});
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw RequestError(fmt::format("lora-dropout is {}, it must be at least 0 and less than 1", lora.dropout),
                       {Remedy::of_option, "lora-dropout"});
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

/// Whether a target is a module's whole name or its end after a dot: in GPT-2 "c_proj" means both modules of this name
/// in a block, and "mlp.c_proj" one.
bool is_target(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

/// The choices of options. \throws RequestError naming a pattern that cannot be read
LoraRules rules_of(const LoraConfig& lora) {
  try {
    return {lora, "adapters"};
  } catch (const FormatError& error) {
    throw RequestError(error.what());
  }
}

/// A module that can have an adapter: a matrix of a block, an embedding (of tokens or positions), the head.
struct Adaptable {
  std::string name;
  std::int64_t out, in;
  int block;
  bool is_embedding = false;
};

/// In the order of the model's parameters. A tied head is a module, too.
std::vector<Adaptable> adaptable_modules(const ModelConfig& config) {
  std::vector<Adaptable> modules;
  for (const auto& spec : parameter_table(config)) {
    if (spec.is_matrix_of_block() || spec.embedding || spec.name == facts_of(config).head)
      modules.push_back({module_of(spec.name), spec.shape[0], spec.shape[1], spec.block, spec.embedding});
  }
  for (const auto& [head, embedding] : tied_names(config))
    modules.push_back({module_of(head), config.vocab_size, config.embed_size, -1});
  return modules;
}

std::vector<std::string> names_of(const std::vector<Adaptable>& modules) {
  std::vector<std::string> names;
  for (const auto& module : modules) names.push_back(module.name);
  return names;
}

/// \return a flag for each of `modules`. \throws RequestError when a name matches none of them
std::vector<bool> chosen_of(const std::vector<Adaptable>& modules, const ModelConfig& config, const LoraConfig& lora) {
  const auto rules = rules_of(lora);
  std::vector<bool> chosen;
  for (const auto& module : modules) chosen.push_back(rules.is_target(module.name, module.block >= 0));
  for (const auto& name : rules.names()) {
    const bool found = name.empty() || std::any_of(modules.begin(), modules.end(),
                                                   [&](const auto& module) { return is_target(module.name, name); });
    if (!found)
      throw RequestError(
          fmt::format("lora-targets has '{}', choose from all, {}", name, fmt::join(lora_modules(config), ", ")),
          {Remedy::of_option, "lora-targets"});
  }
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end())
    throw RequestError("lora-targets names no module", {Remedy::of_option, "lora-targets"});
  return chosen;
}

/// \return for each chosen module the shortest end of its name that means no other one, without duplicates
std::vector<std::string> short_names(const std::vector<std::string>& modules, const std::vector<bool>& chosen) {
  const auto means_no_other = [&](const std::string& target) {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      if (!chosen[i] && is_target(modules[i], target)) return false;
    }
    return true;
  };
  std::vector<std::string> shortest;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!chosen[i]) continue;
    const auto names = {last_parts(modules[i], 1), last_parts(modules[i], 2), modules[i]};
    add_once(shortest, *std::find_if(names.begin(), names.end(), means_no_other));
  }
  return shortest;
}

/// The modules whose rank or alpha is not the adapters' own, as peft's pattern: one value per name, so that the order
/// of names does not matter.
template <typename Value>
nlohmann::json pattern_to_json(const std::map<std::string, LoraModule>& adapted, Value LoraModule::*field,
                               Value usual) {
  std::vector<std::string> modules;
  for (const auto& [name, module] : adapted) modules.push_back(name);
  nlohmann::json pattern = nlohmann::json::object();
  for (const auto& [name, module] : adapted) {
    const auto value = module.*field;
    if (value == usual) continue;
    std::vector<bool> same;
    for (const auto& [other, other_module] : adapted) same.push_back(other_module.*field == value);
    for (const auto& key : short_names(modules, same)) pattern[key] = value;
  }
  return pattern;
}

using config_detail::field;
using config_detail::field_or;

constexpr std::uint64_t kConfigLimit_bytes = 1u << 20;

/// Fields of peft 0.21's LoraConfig that are implemented here, or that do not affect a trained adapter's output.
/// fan_in_fan_out only describes how the base model stores its matrices; it does not affect A and B.
constexpr std::array kHarmless{"alpha_pattern",
                               "auto_mapping",
                               "base_model_name_or_path",
                               "bias",
                               "corda_config",
                               "ensure_weight_tying",
                               "eva_config",
                               "exclude_modules",
                               "fan_in_fan_out",
                               "inference_mode",
                               "init_lora_weights",
                               "layers_pattern",
                               "layers_to_transform",
                               "lora_alpha",
                               "lora_bias",
                               "lora_dropout",
                               "lora_ga_config",
                               "loftq_config",
                               "megatron_core",
                               "modules_to_save",
                               "monteclora_config",
                               "peft_type",
                               "peft_version",
                               "qalora_group_size",
                               "r",
                               "rank_pattern",
                               "revision",
                               "runtime_config",
                               "target_modules",
                               "task_type",
                               "trainable_token_indices",
                               "use_dora",
                               "use_rslora",
                               "velora_config"};

/// Fields that change an adapter's output, or what else is trained, in a way that is not implemented.
constexpr std::array kNotBuilt{"alora_invocation_tokens", "arrow_config",      "kasa_config", "layer_replication",
                               "megatron_config",         "target_parameters", "use_bdlora",  "use_qalora"};

template <typename Names>
bool names(const Names& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// Treats null, false, "", [] and {} like a missing field.
bool is_set(const nlohmann::json& value) {
  return !value.is_null() && value != false && value != "" && !(value.is_structured() && value.empty());
}

void refuse_what_is_not_built(const nlohmann::json& json, const std::string& source) {
  for (const auto& [name, value] : json.items()) {
    if (!is_set(value) || names(kHarmless, name)) continue;
    if (names(kNotBuilt, name))
      throw FormatError(fmt::format("{}: field '{}' is set, which adapters here do not have", source, name));
    throw FormatError(
        fmt::format("{}: field '{}' is not known, so what it changes is not either: where it changes no "
                    "number, take it out",
                    source, name));
  }
}

/// Rejects values of init_lora_weights for which peft modifies the base matrices whenever it loads the adapter, by
/// subtracting the initial A and B. Other initialisations do not matter for a trained adapter.
void refuse_changed_base(const nlohmann::json& json, const std::string& source) {
  const auto found = json.find("init_lora_weights");
  if (found == json.end() || found->is_null() || found->is_boolean()) return;
  const auto name = found->is_string() ? ascii_lower(found->get<std::string>()) : json_text(*found);
  constexpr std::array kLeaveBase{"gaussian", "eva", "orthogonal", "mica"};
  if (names(kLeaveBase, name)) return;
  if (name.starts_with("pissa") || name.starts_with("corda") || name == "olora" || name == "loftq" || name == "lora_ga")
    throw FormatError(fmt::format(
        "{}: init_lora_weights is '{}', which changes the base's matrices, too; this is not supported: save "
        "the adapter with peft's save_pretrained(..., path_initial_model_for_weight_conversion=...), which "
        "makes it one of the unchanged base, or merge it there",
        source, name));
  throw FormatError(fmt::format("{}: init_lora_weights is '{}', which is not known", source, name));
}

/// A list of names, or for text an expression: in the form of LoraConfig::targets. In a list, an entry that is no name
/// matches no module.
std::vector<std::string> names_or_pattern(const nlohmann::json& value, const char* name, const std::string& source) {
  if (!value.is_string() && !value.is_array())
    throw FormatError(fmt::format("{}: field '{}' is {}, a list of names or a regular expression was expected", source,
                                  name, value.type_name()));
  if (value.is_string()) {
    auto text = value.get<std::string>();
    if (text.empty()) throw FormatError(fmt::format("{}: {} is empty", source, name));
    if (std::string_view(name) == "target_modules" && ascii_lower(text) == "all-linear") return {"all-linear"};
    return {is_name_pattern(text) ? text : "^" + text};
  }
  auto list = value.get<std::vector<std::string>>();
  std::erase_if(list,
                [](const auto& entry) { return entry == "all" || entry == "all-linear" || is_name_pattern(entry); });
  return list;
}

/// One value or a list of them, or nothing.
template <typename Value>
std::vector<Value> one_or_list(const nlohmann::json& json, const char* name, const std::string& source) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_array()) return {config_detail::value<Value>(*found, name, source)};
  std::vector<Value> list;
  for (const auto& entry : *found) list.push_back(config_detail::value<Value>(entry, name, source));
  return list;
}

template <typename Value>
std::vector<std::pair<std::string, Value>> read_pattern(const nlohmann::json& json, const char* name,
                                                        const std::string& source) {
  const auto object = json.value(name, nlohmann::json());
  std::vector<std::pair<std::string, Value>> pattern;
  if (!object.is_null() && !object.is_object())
    throw FormatError(fmt::format("{}: field '{}' is {}, an object was expected", source, name, object.type_name()));
  for (const auto& [key, value] : object.items()) {
    pattern.emplace_back(key, config_detail::value<Value>(value, name, source));
    if (!(pattern.back().second > 0) || !std::isfinite(static_cast<double>(pattern.back().second)))
      throw FormatError(fmt::format("{}: field '{}' has {} for '{}', a number above 0 was expected", source, name,
                                    json_text(value), key));
  }
  return pattern;
}

/// A list is the embedding's.
std::map<std::string, std::vector<std::int64_t>> read_token_rows(const nlohmann::json& json) {
  const auto rows = json.value("trainable_token_indices", nlohmann::json());
  if (!is_set(rows)) return {};
  if (!rows.is_object()) return {{"", rows.get<std::vector<std::int64_t>>()}};
  return rows.get<std::map<std::string, std::vector<std::int64_t>>>();
}

/// Reads what chooses modules and parameters.
void read_choices(const nlohmann::json& json, const std::string& source, LoraConfig& lora) {
  lora.targets = names_or_pattern(json.value("target_modules", nlohmann::json()), "target_modules", source);
  if (json.contains("exclude_modules") && is_set(json["exclude_modules"]))
    lora.exclude = names_or_pattern(json["exclude_modules"], "exclude_modules", source);
  lora.layers = one_or_list<std::int64_t>(json, "layers_to_transform", source);
  lora.layers_patterns = one_or_list<std::string>(json, "layers_pattern", source);
  std::erase(lora.layers_patterns, "");
  if (std::any_of(lora.layers_patterns.begin(), lora.layers_patterns.end(), is_name_pattern))
    throw FormatError(source + ": field 'layers_pattern' is an expression, which adapters here do not have: names are");
  lora.rank_pattern = read_pattern<std::int64_t>(json, "rank_pattern", source);
  lora.alpha_pattern = read_pattern<double>(json, "alpha_pattern", source);
  const auto bias = field_or(json, "bias", std::string("none"), source);
  const auto known = find_value(kLoraBiases, bias);
  if (!known)
    throw FormatError(fmt::format("{}: bias '{}' is not known, {} are", source, bias, choices_of(kLoraBiases)));
  lora.bias = *known;
  lora.lora_bias = field_or(json, "lora_bias", false, source);
  if (json.contains("modules_to_save") && is_set(json["modules_to_save"]))
    lora.modules_to_save = one_or_list<std::string>(json, "modules_to_save", source);
  std::erase(lora.modules_to_save, "");
  lora.ensure_weight_tying = field_or(json, "ensure_weight_tying", false, source);
  lora.token_rows = read_token_rows(json);
}

/// Puts a pattern into the order of the file, in which the first match counts.
template <typename Value>
void in_order_of(const nlohmann::ordered_json& file, const char* name,
                 std::vector<std::pair<std::string, Value>>& pattern) {
  std::vector<std::pair<std::string, Value>> ordered;
  for (std::size_t n = 0; n < pattern.size(); ++n) {
    const auto key = std::next(file.at(name).begin(), static_cast<std::ptrdiff_t>(n)).key();
    ordered.push_back(
        *std::find_if(pattern.begin(), pattern.end(), [&](const auto& entry) { return entry.first == key; }));
  }
  pattern = std::move(ordered);
}

}  // namespace

double LoraConfig::scale(std::int64_t of_rank, double of_alpha) const {
  const auto r = static_cast<double>(of_rank);
  return of_alpha / (rslora ? std::sqrt(r) : r);
}

bool is_name_pattern(const std::string& target) { return target.find_first_of("*+?()[]{}|^$\\") != std::string::npos; }

std::vector<std::string> lora_modules(const ModelConfig& config) {
  std::vector<std::string> modules;
  for (const auto& spec : parameter_table(config)) {
    if (spec.block == 0 && spec.is_matrix_of_block()) add_once(modules, last_parts(module_of(spec.name), 1));
  }
  return modules;
}

std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora) {
  const auto modules = adaptable_modules(config);
  return short_names(names_of(modules), chosen_of(modules, config, lora));
}

std::map<std::string, LoraModule> adapted_modules(const ModelConfig& config, const LoraConfig& lora) {
  std::map<std::string, LoraModule> adapted;
  if (!lora.enabled()) return adapted;
  validate(lora);
  const auto modules = adaptable_modules(config);
  const auto chosen = chosen_of(modules, config, lora);
  const auto rules = rules_of(lora);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!chosen[i]) continue;
    const auto& name = modules[i].name;
    const auto module = rules.module(name);
    if (module.rank > kMostRank)
      throw RequestError(fmt::format("the rank of {} is {}, it can be at most {}", name, module.rank, kMostRank));
    const bool ties = lora.ensure_weight_tying && is_token_table(name + ".weight");
    if (modules[i].block < 0 && (lora.dora || lora.lora_bias || ties))
      throw RequestError(
          fmt::format("{} gets an adapter, which DoRA, a bias of its own and ensure_weight_tying are not "
                      "supported with",
                      name));
    adapted.emplace(name, module);
  }
  return adapted;
}

std::map<std::string, std::vector<std::int64_t>> trained_rows(const ModelConfig& config, const LoraConfig& lora) {
  std::map<std::string, std::vector<std::int64_t>> rows;
  if (!lora.enabled()) return rows;
  const auto modules = adaptable_modules(config);
  const auto rules = rules_of(lora);
  for (const auto& [end, ids] : lora.token_rows) {
    const auto found = std::find_if(modules.begin(), modules.end(), [&, &end = end](const Adaptable& module) {
      return module.block < 0 && (end.empty() ? module.is_embedding : module.name.ends_with(end));
    });
    if (found == modules.end())
      throw RequestError(fmt::format("trainable_token_indices has '{}', which is no embedding and not the head", end));
    auto sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    if (ids.empty() || sorted.front() < 0 || sorted.back() >= found->out ||
        std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw RequestError(fmt::format("trainable_token_indices of {} must be different numbers from 0 to {}",
                                     found->name, found->out - 1));
    if (rules.is_saved(found->name + ".weight"))
      throw RequestError(
          fmt::format("{} is in modules_to_save and has trainable_token_indices: choose one", found->name));
    if (!rows.emplace(found->name, ids).second)
      throw RequestError(fmt::format("trainable_token_indices names {} twice", found->name));
  }
  for (const auto& [head, embedding] : tied_names(config)) {
    if (rows.contains(module_of(head)) && rows.contains(module_of(embedding)))
      throw RequestError(
          "trainable_token_indices has rows of a head and of the embedding that it is tied to: rows of the "
          "embedding are the head's, too");
  }
  return rows;
}

std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<ParameterSpec> table;
  const auto adapted = adapted_modules(config, lora);
  const auto rows = trained_rows(config, lora);
  for (const auto& [name, out, in, block, is_embedding] : adaptable_modules(config)) {
    const auto add = [&, name = name, block = block, lookup = is_embedding](
                         const char* part, std::vector<std::int64_t> shape, Init init, double spread = 0.0) {
      const bool decay = shape.size() == 2;
      table.push_back({name + part, std::move(shape), init, spread, decay, block, lookup});
    };
    if (const auto trained = rows.find(name); trained != rows.end())
      add(kTokenRows, {std::ssize(trained->second), in}, Init::token_rows);
    const auto found = adapted.find(name);
    if (found == adapted.end()) continue;
    const auto rank = found->second.rank;
    // Initialised as in peft: kaiming_uniform with a = sqrt(5), which is U(+-1 / sqrt(in)), for A, and zero for B; of
    // an embedding zero for A and normal for B.
    if (is_embedding) {
      add(kEmbeddingA, {rank, out}, Init::zeros);
      add(kEmbeddingB, {in, rank}, Init::normal, 1.0);
      continue;
    }
    add(".lora_A.weight", {rank, in}, Init::uniform, 1.0 / std::sqrt(static_cast<double>(in)));
    add(".lora_B.weight", {out, rank}, Init::zeros);
    if (lora.lora_bias) add(".lora_B.bias", {out}, Init::zeros);
    if (lora.dora) add(".lora_magnitude_vector", {out}, Init::row_norms);
  }
  for (auto& spec : table) {
    spec.adapter = true;
    spec.storage = Storage::float32;
  }
  return table;
}

ModelConfig adapted_model(const ModelConfig& config, const LoraConfig& lora) {
  auto adapted = config;
  if (lora.enabled() && lora.vocabulary > 0) adapted.vocab_size = lora.vocabulary;
  if (!lora.enabled() || lora.modules_to_save.empty() || lora.ensure_weight_tying) return adapted;
  const auto rules = rules_of(lora);
  for (const auto& [head, embedding] : tied_names(config)) {
    if (!rules.is_saved(head) && !rules.is_saved(embedding)) continue;
    if (facts_of(config).is_always_tied)
      throw RequestError(
          "modules_to_save has the embedding or the head of a GPT-2, which are one here: with "
          "ensure_weight_tying they stay one",
          Remedy::of_weight_tying);
    adapted.tie_word_embeddings = false;
    adapted.head_starts_as_embedding = true;
  }
  return adapted;
}

void mark_saved_parameters(std::vector<ParameterSpec>& table, const ModelConfig& config, const LoraConfig& lora) {
  if (!lora.enabled()) return;
  const auto rules = rules_of(lora);
  const auto adapted = adapted_modules(config, lora);
  const auto tied = tied_names(config);
  const auto is_saved = [&](const std::string& name) {
    if (rules.is_saved(name)) return true;
    const bool is_bias = name.ends_with(".bias") && lora.bias != LoraBias::none;
    if (is_bias && (lora.bias == LoraBias::all || adapted.contains(module_of(name)))) return true;
    return std::any_of(tied.begin(), tied.end(),
                       [&](const auto& tie) { return tie.second == name && rules.is_saved(tie.first); });
  };
  for (auto& spec : table) {
    spec.kept =
        lora.vocabulary > 0 && is_token_table(spec.name) && (lora.tables.empty() || names(lora.tables, spec.name));
    if (spec.name != kScoreWeight && !is_saved(spec.stands_for == 0 ? "" : spec.name)) continue;
    if (spec.stands_for > 0)
      throw RequestError(
          fmt::format("modules_to_save takes '{}', which is in 4 bits and cannot be trained", spec.name));
    if (spec.is_matrix_of_block() && !facts_of(config).conv1d_type.empty())
      throw RequestError(
          fmt::format("modules_to_save takes '{}', and of a GPT-2 only what is no matrix of a block is "
                      "supported",
                      spec.name));
    spec.saved = true;
    spec.kept = false;
  }
  for (const auto& name : lora.modules_to_save) {
    LoraConfig alone;
    alone.modules_to_save = {name};
    const auto one = rules_of(alone);
    const bool found =
        std::any_of(table.begin(), table.end(), [&](const auto& spec) { return one.is_saved(spec.name); }) ||
        std::any_of(tied.begin(), tied.end(), [&](const auto& tie) { return one.is_saved(tie.first); });
    if (!found) throw RequestError(fmt::format("modules_to_save has '{}', which ends the name of no module", name));
  }
}

AdapterConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source) {
  try {
    const auto type = field<std::string>(json, "peft_type", source);
    if (type != "LORA") throw FormatError(fmt::format("{}: peft_type '{}' is not supported, LORA is", source, type));
    refuse_what_is_not_built(json, source);
    refuse_changed_base(json, source);
    AdapterConfig adapter;
    auto& lora = adapter.lora;
    lora.rank = field<std::int64_t>(json, "r", source);
    if (lora.rank < 1) throw FormatError(fmt::format("{}: field 'r' is {}, a rank was expected", source, lora.rank));
    lora.alpha = field<double>(json, "lora_alpha", source);
    lora.dropout = field_or(json, "lora_dropout", 0.0, source);
    if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
      throw FormatError(fmt::format("{}: field 'lora_alpha' is {}, a number above 0 was expected", source, lora.alpha));
    if (!(lora.dropout >= 0 && lora.dropout < 1))
      throw FormatError(
          fmt::format("{}: field 'lora_dropout' is {}, a share from 0 to below 1 was expected", source, lora.dropout));
    lora.rslora = field_or(json, "use_rslora", false, source);
    lora.dora = field_or(json, "use_dora", false, source);
    read_choices(json, source, lora);
    if (lora.dora && lora.lora_bias)
      throw FormatError(source + ": lora_bias and use_dora are both set, which peft has not either");
    adapter.starts_by_chance = json.value("init_lora_weights", nlohmann::json()) == false;
    for (const auto& [field, part] :
         {std::pair("velora_config", ".lora_velora_"), {"monteclora_config", ".lora_monteclora_"}}) {
      if (json.contains(field) && is_set(json[field])) adapter.training_parts.emplace_back(part);
    }
    return adapter;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(source + ": is no adapter_config.json as peft writes it: " + error.what());
  }
}

AdapterConfig read_adapter_config(const std::filesystem::path& directory) {
  const auto path = directory / kAdapterConfig;
  const auto text = read_text_file(path, kConfigLimit_bytes);
  try {
    auto adapter = adapter_config_from_json(parse_json(text, path.string()), path.string());
    const auto ordered = nlohmann::ordered_json::parse(text);
    in_order_of(ordered, "rank_pattern", adapter.lora.rank_pattern);
    in_order_of(ordered, "alpha_pattern", adapter.lora.alpha_pattern);
    return adapter;
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  }
}

void take_vocabulary(const nlohmann::json& data, LoraConfig& lora) {
  lora.vocabulary = data.value("adapter_vocabulary", std::int64_t{0});
  lora.tables = data.value("adapter_tables", std::vector<std::string>());
}

bool has_adapter(const std::filesystem::path& directory) {
  std::error_code error;
  const auto has = [&](const char* name) { return std::filesystem::is_regular_file(directory / name, error); };
  return has(kAdapterConfig) && (has(kAdapterWeights) || has(kAdapterPickle));
}

std::vector<std::string> adapter_left_out(const std::filesystem::path& directory) {
  if (!has_adapter(directory)) return {};
  return {
      fmt::format("{0}: an adapter is there, too, which transformers would add to the weights; here it is left out: "
                  "--adapter {0} takes it (fsdp-ckpt-convert: --merge-adapter {0})",
                  directory.string())};
}

void refuse_adapter_alone(const std::filesystem::path& path) {
  const bool is_file = path.filename() == kAdapterWeights || path.filename() == kAdapterPickle;
  const auto directory = is_file ? path.parent_path() : path;
  std::error_code error;
  if (std::filesystem::exists(directory / "config.json", error) || !has_adapter(directory)) return;
  const auto json =
      parse_json_or_discard(read_text_file(directory / kAdapterConfig, kConfigLimit_bytes), path.string());
  const auto base = json.is_object() ? json.value("base_model_name_or_path", nlohmann::json()) : nlohmann::json();
  throw FormatError(
      fmt::format("{}: is an adapter, not a model: the model that it was trained for{} is missing", path.string(),
                  base.is_string() ? " (by its adapter_config.json " + base.get<std::string>() + ")" : std::string()),
      Remedy::model_and_adapter);
}

nlohmann::json adapter_config_to_json(const ModelConfig& config, const LoraConfig& lora, const std::string& base) {
  nlohmann::json json{{"peft_type", "LORA"},
                      {"task_type", config.has_scores() ? "SEQ_CLS" : "CAUSAL_LM"},
                      {"base_model_name_or_path", base},
                      {"r", lora.rank},
                      {"lora_alpha", lora.alpha},
                      {"lora_dropout", lora.dropout},
                      {"target_modules", lora_targets(config, lora)},
                      {"use_rslora", lora.rslora},
                      {"use_dora", lora.dora},
                      {"bias", std::string(name_of(kLoraBiases, lora.bias))},
                      // true for the Conv1D layers of transformers' GPT-2
                      {"fan_in_fan_out", !facts_of(config).conv1d_type.empty()},
                      {"inference_mode", true},
                      {"init_lora_weights", true},
                      {"modules_to_save", nullptr}};
  const auto adapted = adapted_modules(config, lora);
  if (auto ranks = pattern_to_json(adapted, &LoraModule::rank, lora.rank); !ranks.empty()) json["rank_pattern"] = ranks;
  if (auto alphas = pattern_to_json(adapted, &LoraModule::alpha, lora.alpha); !alphas.empty())
    json["alpha_pattern"] = alphas;
  if (lora.lora_bias) json["lora_bias"] = true;
  auto saved = lora.modules_to_save;
  if (config.has_scores()) add_once(saved, module_of(kScoreWeight));
  if (!saved.empty()) json["modules_to_save"] = saved;
  if (lora.ensure_weight_tying) json["ensure_weight_tying"] = true;
  if (lora.token_rows.contains("") && lora.token_rows.size() == 1) {
    json["trainable_token_indices"] = lora.token_rows.at("");
  } else if (!lora.token_rows.empty()) {
    json["trainable_token_indices"] = trained_rows(config, lora);
  }
  return json;
}

}  // namespace fsdp
