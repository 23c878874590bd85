#pragma once
// Shared by the readers of model configurations: typed access to JSON fields, and defaults of the Llama family.
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp::config_detail {

/// Which layers use sliding-window attention if config.json has no layer_types.
enum class Windows {
  none,
  all,            ///< all layers, if sliding_window is a number; layer_types has no effect
  all_or_listed,  ///< all layers, if sliding_window is a number
  from_layer,     ///< if use_sliding_window is set, the layers from max_window_layers on
  alternating,    ///< every other layer, starting with the first
  pattern         ///< all layers except each sliding_window_pattern-th
};

/// A model family with Llama's kind of layers, or Falcon: its traits and the defaults for fields that config.json may
/// omit, as in transformers 5.23. A new family is a row in family.cpp, the names of its new tensors in
/// decoder_parameters.cpp, and a fixture.
struct Family {
  std::string_view type;          ///< model_type
  std::string_view architecture;  ///< class in transformers
  DecoderTraits traits;           ///< traits that all models of the family share
  Windows windows = Windows::none;
  std::int64_t window = 0;         ///< default of sliding_window
  std::int64_t head_size = 0;      ///< head_dim; 0: hidden_size / num_attention_heads
  std::int64_t kv_heads = 0;       ///< num_key_value_heads; 0: num_attention_heads
  std::int64_t positions = 2048;   ///< max_position_embeddings
  double eps = 1e-6;               ///< rms_norm_eps; Falcon: layer_norm_epsilon
  double rope_theta = 1e4;         ///< of full-attention layers
  std::int64_t padding_id = -1;    ///< pad_token_id
  bool tied = false;               ///< tie_word_embeddings
  bool has_attention_bias = true;  ///< attention_bias applies to q, k, v and o; otherwise the field has no effect
  bool has_mlp_bias = false;
  bool has_softcaps = false;  ///< attn_logit_softcapping applies; otherwise the field has no effect
};

inline constexpr std::string_view kFalcon = "falcon";

std::span<const Family> families();
/// Returns null if no family has this model_type.
const Family* find_family(std::string_view type);

inline constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
inline constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

/// Returns the value of `json` without conversion: a fraction, a boolean or a number beyond 64 bits is not an integer.
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

/// \throws FormatError naming `source` and the field if it is missing or of another type
template <typename T>
T field(const nlohmann::json& json, const char* name, const std::string& source) {
  const auto it = json.find(name);
  if (it == json.end()) throw FormatError(source + ": field '" + name + "' is missing");
  return value<T>(*it, name, source);
}

/// Like field(), but returns `otherwise` for a field that is absent or null.
template <typename T>
T field_or(const nlohmann::json& json, const char* name, T otherwise, const std::string& source) {
  const auto it = json.find(name);
  return it == json.end() || it->is_null() ? otherwise : field<T>(json, name, source);
}

/// ModelConfig::validate() for a configuration from a file. \throws FormatError naming `source`
void validate(const ModelConfig& config, const std::string& source);

/// Rotary-position fields of config.json.
struct RopeFields {
  double theta = 0;
  double local_theta = 0;  ///< base of sliding-window layers; 0: theta
  double fraction = 1;     ///< share of a head's elements that is rotated
  nlohmann::json scaling;  ///< in the form of transformers 4's rope_scaling; null: none
};
/// Reads the fields of transformers 4, rope_parameters of transformers 5, or both. Accepts kinds of scaling that
/// rope_frequencies() does not support. \throws FormatError naming `source` and the field if the two versions would
/// compute different results or one would fail
RopeFields read_rope(const Family& family, const nlohmann::json& json, const std::string& source);
/// Writes the fields of transformers 4, which transformers 5 reads with the same result.
void write_rope(const Family& family, const RopeFields& rope, nlohmann::json& json);
/// True for a kind of scaling that rope_frequencies() supports.
bool is_rope_kind(std::string_view kind);

/// Reads a config.json with model_type gpt2 as a minGPT, which computes the same. \throws FormatError
ModelConfig gpt2_from_json(const nlohmann::json& json, const std::string& source);
/// Reads a config.json with the model_type of a family, as transformers 4 and 5 write it. \throws FormatError
ModelConfig decoder_from_json(const Family& family, const nlohmann::json& json, const std::string& source);
nlohmann::json decoder_to_json(const ModelConfig& config);
std::vector<ParameterSpec> decoder_parameter_table(const ModelConfig& config);

// The same for Falcon.
ModelConfig falcon_from_json(const Family& family, const nlohmann::json& json, const std::string& source);
nlohmann::json falcon_to_json(const ModelConfig& config);
std::vector<ParameterSpec> falcon_parameter_table(const ModelConfig& config);

}  // namespace fsdp::config_detail
