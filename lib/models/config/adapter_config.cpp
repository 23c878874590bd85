#include "lib/models/config/adapter_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/text_format.hpp"
#include "lib/models/config/model_config_fields.hpp"

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
    throw UsageError(fmt::format("--lora-rank is {}, it can be at most {}", lora.rank, kMostRank));
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
    throw UsageError(fmt::format("--lora-alpha is {}, it must be greater than 0", lora.alpha));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw UsageError(fmt::format("--lora-dropout is {}, it must be at least 0 and less than 1", lora.dropout));
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

/// Matches like peft: a target is a module's whole name or its end after a dot, so in GPT-2 "c_proj" matches both
/// modules of this name in a block, and "mlp.c_proj" matches one.
bool is_target(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

/// \return a flag for each parameter of the model's table. \throws UsageError when a target matches no matrix
std::vector<bool> chosen_matrices(const ModelConfig& config, const LoraConfig& lora) {
  const auto table = parameter_table(config);
  std::vector<bool> chosen(table.size(), false);
  bool any = false;
  for (const auto& target : lora.targets) {
    const bool all = target == "all" || target == "all-linear";
    bool found = target.empty();
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (!table[i].is_matrix_of_block() || !(all || is_target(module_of(table[i].name), target))) continue;
      chosen[i] = found = any = true;
    }
    if (!found)
      throw UsageError(
          fmt::format("--lora-targets has '{}', choose from all, {}", target, fmt::join(lora_modules(config), ", ")));
  }
  if (!any) throw UsageError("--lora-targets names no module");
  return chosen;
}

using config_detail::field;
using config_detail::field_or;

constexpr std::uint64_t kConfigLimit_bytes = 1u << 20;

/// Fields of peft 0.21's LoraConfig that are implemented here, or that do not affect a trained adapter's output.
/// fan_in_fan_out only describes how the base model stores its matrices; it does not affect A and B.
constexpr std::array kHarmless{"auto_mapping",
                               "base_model_name_or_path",
                               "bias",
                               "corda_config",
                               "ensure_weight_tying",
                               "eva_config",
                               "fan_in_fan_out",
                               "inference_mode",
                               "init_lora_weights",
                               "lora_alpha",
                               "lora_dropout",
                               "lora_ga_config",
                               "loftq_config",
                               "megatron_core",
                               "monteclora_config",
                               "peft_type",
                               "peft_version",
                               "qalora_group_size",
                               "r",
                               "revision",
                               "runtime_config",
                               "target_modules",
                               "task_type",
                               "use_dora",
                               "use_rslora",
                               "velora_config"};

/// Fields that change an adapter's output, or what else is trained, in a way that is not implemented.
constexpr std::array kNotBuilt{"alora_invocation_tokens",
                               "alpha_pattern",
                               "arrow_config",
                               "exclude_modules",
                               "kasa_config",
                               "layer_replication",
                               "layers_pattern",
                               "layers_to_transform",
                               "lora_bias",
                               "megatron_config",
                               "modules_to_save",
                               "rank_pattern",
                               "target_parameters",
                               "trainable_token_indices",
                               "use_bdlora",
                               "use_qalora"};

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
  const auto bias = field_or(json, "bias", std::string("none"), source);
  if (bias != "none") throw FormatError(fmt::format("{}: bias '{}' is not supported, none is", source, bias));
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

/// Reads target_modules as peft does.
void read_targets(const nlohmann::json& json, const std::string& source, AdapterConfig& adapter) {
  const auto targets = json.value("target_modules", nlohmann::json());
  if (!targets.is_string() && !targets.is_array())
    throw FormatError(
        fmt::format("{}: field 'target_modules' is {}, a list of names or a regular expression was expected", source,
                    targets.type_name()));
  if (!targets.is_string()) {
    adapter.lora.targets = targets.get<std::vector<std::string>>();
    return;
  }
  adapter.lora.targets.clear();
  adapter.pattern = targets.get<std::string>();
  if (adapter.pattern.empty()) throw FormatError(source + ": target_modules is empty");
  adapter.all_linear = ascii_lower(adapter.pattern) == "all-linear";
  if (adapter.all_linear) adapter.pattern.clear();
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

std::vector<std::string> lora_modules(const ModelConfig& config) {
  std::vector<std::string> modules;
  for (const auto& spec : parameter_table(config)) {
    if (spec.block == 0 && spec.is_matrix_of_block()) add_once(modules, last_parts(module_of(spec.name), 1));
  }
  return modules;
}

std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora) {
  const auto chosen = chosen_matrices(config, lora);
  const auto table = parameter_table(config);
  const auto means_no_other = [&](const std::string& target) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].is_matrix_of_block() && !chosen[i] && is_target(module_of(table[i].name), target)) return false;
    }
    return true;
  };
  std::vector<std::string> targets;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!chosen[i]) continue;
    const auto module = module_of(table[i].name);
    const auto names = {last_parts(module, 1), last_parts(module, 2), module};
    add_once(targets, *std::find_if(names.begin(), names.end(), means_no_other));
  }
  return targets;
}

std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<ParameterSpec> table;
  if (!lora.enabled()) return table;
  validate(lora);
  const auto chosen = chosen_matrices(config, lora);
  const auto base = parameter_table(config);
  for (std::size_t i = 0; i < base.size(); ++i) {
    if (!chosen[i]) continue;
    const auto& spec = base[i];
    const auto module = module_of(spec.name);
    const auto out = spec.shape[0], in = spec.shape[1];
    // Initialised as in peft: kaiming_uniform with a = sqrt(5), which is U(+-1 / sqrt(in)), for A, and zero for B.
    table.push_back({module + ".lora_A.weight",
                     {lora.rank, in},
                     Init::uniform,
                     1.0 / std::sqrt(static_cast<double>(in)),
                     true,
                     spec.block});
    table.push_back({module + ".lora_B.weight", {out, lora.rank}, Init::zeros, 0.0, true, spec.block});
    if (lora.dora) table.push_back({module + ".lora_magnitude_vector", {out}, Init::row_norms, 0.0, false, spec.block});
  }
  for (auto& spec : table) {
    spec.adapter = true;
    spec.storage = Storage::float32;
  }
  return table;
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
    read_targets(json, source, adapter);
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
    return adapter_config_from_json(parse_json(text, path.string()), path.string());
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  }
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
  throw FormatError(fmt::format(
      "{}: is an adapter, not a model: give the model that it was trained for{} and this with --adapter", path.string(),
      base.is_string() ? " (by its adapter_config.json " + base.get<std::string>() + ")" : std::string()));
}

nlohmann::json adapter_config_to_json(const ModelConfig& config, const LoraConfig& lora, const std::string& base) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", lora.dropout},
          {"target_modules", lora_targets(config, lora)},
          {"use_rslora", lora.rslora},
          {"use_dora", lora.dora},
          {"bias", "none"},
          // true for the Conv1D layers of transformers' GPT-2
          {"fan_in_fan_out", config.architecture == Architecture::mingpt},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr}};
}

}  // namespace fsdp
