#pragma once
// adapter_config.json: how peft writes down an adapter. Free of LibTorch.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/models/config/lora.hpp"

namespace fsdp {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
/// The file that older peft wrote in place of it; it is read where the other is absent.
inline constexpr const char* kAdapterPickle = "adapter_model.bin";
/// Before a parameter's name in those weights.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

struct AdapterConfig {
  LoraConfig lora;                ///< targets: of a list of target_modules, each a module's name or the end of one
  std::string pattern;            ///< target_modules as a regular expression for whole names; empty: it is a list
  bool starts_by_chance = false;  ///< init_lora_weights is false: without tensors an adapter is not nothing
  bool all_linear = false;        ///< target_modules is "all-linear": every matrix of the blocks
  /// Prefixes of tensors in the adapter's file that act while it is trained and are nothing to the result.
  std::vector<std::string> training_parts;
};

/// DIR/adapter_config.json. \throws FormatError naming the field whose value adapters here do not have; also a field
///         that peft does not have and that is set
AdapterConfig read_adapter_config(const std::filesystem::path& directory);

/// Of such a file's content. \param source  for messages
AdapterConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source);

/// DIR holds adapter_config.json and an adapter's weights.
bool has_adapter(const std::filesystem::path& directory);
/// Of a folder of weights that holds an adapter beside them, which transformers would add: that it is left out, and
/// how it is not. Nothing of any other
std::vector<std::string> adapter_left_out(const std::filesystem::path& directory);
/// \param path  given as a model. \throws FormatError where it is an adapter alone
void refuse_adapter_alone(const std::filesystem::path& path);

/// As PeftModel.from_pretrained() reads it. \param base  name or folder of the model
nlohmann::json adapter_config_to_json(const ModelConfig& config, const LoraConfig& lora, const std::string& base);

}  // namespace fsdp
