#pragma once
// Shared by the readers of model configurations: typed access to JSON fields, and what is particular to Llama.
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp::config_detail {

inline constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
inline constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

/// Of `json` as it is: a fraction, a true or a number beyond 64 bits is no whole number.
/// \throws FormatError naming `source` and the field
template <typename T>
T value(const nlohmann::json& json, const char* name, const std::string& source) {
  const auto fail = [&](const char* wanted) {
    auto shown = json.is_structured() ? std::string(json.type_name()) : json.dump(-1, ' ', true, kReplace);
    if (shown.size() > 100) shown.resize(100);
    throw FormatError(source + ": field '" + name + "' is " + shown + ", expected " + wanted);
  };
  if constexpr (std::is_same_v<T, std::int64_t>) {
    if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<std::uint64_t>() > kLargest)) {
      fail("a whole number of at most 64 bits");
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (!json.is_number()) fail("a number");
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) fail("true or false");
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!json.is_string()) fail("text");
  }
  return json.get<T>();
}

/// \throws FormatError naming `source` and the field when it is missing or of another type
template <typename T>
T field(const nlohmann::json& json, const char* name, const std::string& source) {
  const auto it = json.find(name);
  if (it == json.end()) throw FormatError(source + ": field '" + name + "' is missing");
  return value<T>(*it, name, source);
}

/// As field(); a field that is absent or null has the value `otherwise`.
template <typename T>
T field_or(const nlohmann::json& json, const char* name, T otherwise, const std::string& source) {
  const auto it = json.find(name);
  return it == json.end() || it->is_null() ? otherwise : field<T>(json, name, source);
}

/// ModelConfig::validate() for what a file says. \throws FormatError naming `source`
void validate(const ModelConfig& config, const std::string& source);

/// What config.json says of rotary positions.
struct RopeFields {
  double theta = 0;
  double local_theta = 0;  ///< of layers that slide; 0: as the others
  double fraction = 1;     ///< of a head's elements, those that turn
  nlohmann::json scaling;  ///< as transformers 4 has it in rope_scaling; null: none
};
/// From the fields of transformers 4, the rope_parameters of 5, or both. Whether its kind is built is not looked at.
/// \throws FormatError naming `source` and the field where one version computes something else than the other, or stops
RopeFields read_rope(const Family& family, const nlohmann::json& json, const std::string& source);
/// In the fields of transformers 4, which 5 reads alike.
void write_rope(const Family& family, const RopeFields& rope, nlohmann::json& json);
/// A kind of scaling that rope_frequencies() computes.
bool is_rope_kind(std::string_view kind);

/// A config.json with model_type gpt2: a minGPT of the same mathematics. \throws FormatError
ModelConfig gpt2_from_json(const nlohmann::json& json, const std::string& source);
/// A config.json with the model_type of a family, as transformers 4 and 5 write it. \throws FormatError
ModelConfig decoder_from_json(const Family& family, const nlohmann::json& json, const std::string& source);
nlohmann::json decoder_to_json(const ModelConfig& config);
std::vector<ParameterSpec> decoder_parameter_table(const ModelConfig& config);

}  // namespace fsdp::config_detail
