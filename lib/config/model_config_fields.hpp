#pragma once
// Shared by the readers of model configurations: typed access to JSON fields, and what is particular to Llama.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/config/model_config.hpp"

namespace fsdp::config_detail {

/// \throws FormatError naming `source` and the field when it is missing or of another type
template <typename T>
T field(const nlohmann::json& json, const char* name, const std::string& source) {
  const auto it = json.find(name);
  if (it == json.end()) throw FormatError(source + ": field '" + name + "' is missing");
  try {
    return it->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw FormatError(source + ": field '" + name + "' is " + it->dump() + ", which is not what it should be");
  }
}

/// As field(); a field that is absent or null has the value `otherwise`.
template <typename T>
T field_or(const nlohmann::json& json, const char* name, T otherwise, const std::string& source) {
  const auto it = json.find(name);
  return it == json.end() || it->is_null() ? otherwise : field<T>(json, name, source);
}

/// ModelConfig::validate() for what a file says. \throws FormatError naming `source`
void validate(const ModelConfig& config, const std::string& source);

/// A config.json with model_type gpt2: a minGPT of the same mathematics. \throws FormatError
ModelConfig gpt2_from_json(const nlohmann::json& json, const std::string& source);
/// A config.json with model_type llama, as transformers 4 and 5 write it. \throws FormatError
ModelConfig llama_from_json(const nlohmann::json& json, const std::string& source);
nlohmann::json llama_to_json(const ModelConfig& config);
std::vector<ParameterSpec> llama_parameter_table(const ModelConfig& config);

}  // namespace fsdp::config_detail
