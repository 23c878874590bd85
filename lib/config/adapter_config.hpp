#pragma once
// adapter_config.json: how peft writes down an adapter. Free of LibTorch.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/config/lora.hpp"

namespace fsdp {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
/// Before a parameter's name in those weights.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

/// Of DIR, or of the file itself. \throws FormatError naming the field whose value adapters here do not have
LoraConfig read_adapter_config(const std::filesystem::path& directory);

/// Of such a file's content. \param source  for messages
LoraConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source);

/// As PeftModel.from_pretrained() reads it. \param base  name or folder of the model
nlohmann::json adapter_config_to_json(const ModelConfig& config, const LoraConfig& lora, const std::string& base);

}  // namespace fsdp
