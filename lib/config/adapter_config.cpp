#include "lib/config/adapter_config.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/config/model_config_fields.hpp"

namespace fsdp {
namespace {

using config_detail::field;
using config_detail::field_or;

/// Fields that change what an adapter computes, or what else is trained, in a way that is not built.
void refuse_what_is_not_built(const nlohmann::json& json, const std::string& source) {
  constexpr std::array kOff{"modules_to_save", "layers_to_transform", "layer_replication",       "alpha_pattern",
                            "rank_pattern",    "target_parameters",   "trainable_token_indices", "exclude_modules"};
  for (const char* name : kOff) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null() || found->empty()) continue;
    throw FormatError(fmt::format("{}: field '{}' is set, which adapters here do not have", source, name));
  }
  // fan_in_fan_out says how the base keeps its matrices, which whoever reads the base knows; A and B do not change.
  for (const char* name : {"lora_bias", "use_qalora"}) {
    if (field_or(json, name, false, source))
      throw FormatError(fmt::format("{}: field '{}' is true, which adapters here do not have", source, name));
  }
  const auto bias = field_or(json, "bias", std::string("none"), source);
  if (bias != "none") throw FormatError(fmt::format("{}: bias '{}' is not supported, none is", source, bias));
}

}  // namespace

LoraConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source) {
  try {
    const auto type = field<std::string>(json, "peft_type", source);
    if (type != "LORA") throw FormatError(fmt::format("{}: peft_type '{}' is not supported, LORA is", source, type));
    refuse_what_is_not_built(json, source);
    LoraConfig lora;
    lora.rank = field<std::int64_t>(json, "r", source);
    if (lora.rank < 1) throw FormatError(fmt::format("{}: field 'r' is {}, a rank was expected", source, lora.rank));
    lora.alpha = field<double>(json, "lora_alpha", source);
    lora.dropout = field_or(json, "lora_dropout", 0.0, source);
    lora.rslora = field_or(json, "use_rslora", false, source);
    lora.dora = field_or(json, "use_dora", false, source);
    const auto& targets = json.at("target_modules");
    lora.targets =
        targets.is_string() ? std::vector{targets.get<std::string>()} : targets.get<std::vector<std::string>>();
    return lora;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(source + ": is no adapter_config.json as peft writes it: " + error.what());
  }
}

LoraConfig read_adapter_config(const std::filesystem::path& directory) {
  const auto path = directory / kAdapterConfig;
  constexpr std::uint64_t kLimit_bytes = 1u << 20;
  const auto text = read_text_file(path, kLimit_bytes);
  try {
    return adapter_config_from_json(parse_json(text, path.string()), path.string());
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  }
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
          {"fan_in_fan_out", config.architecture == Architecture::mingpt},  // of transformers' GPT-2
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr}};
}

}  // namespace fsdp
