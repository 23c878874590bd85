#pragma once
// Shared by the readers of model configurations: typed access to JSON fields, kinds of models and
// families.
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/models/config/family.hpp"
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

struct Family;

/// The names that messages give to sizes.
struct SizeNames {
  const char *layers, *heads, *embed, *ffn, *vocab, *positions;
};
/// The names in most config.json files.
inline constexpr SizeNames kUsualSizes{"num_hidden_layers", "num_attention_heads", "hidden_size",
                                       "intermediate_size", "config.vocab_size",   "max_position_embeddings"};

using HasName = std::function<bool(const std::string&)>;

/// The part that the families of one Architecture share: how their config.json is read and written, and their
/// parameters. Each is in a file of its own (llama_config.cpp, falcon_config.cpp, mingpt_config.cpp).
struct Kind {
  Architecture architecture;
  SizeNames sizes = kUsualSizes;
  bool has_rotary = true;     ///< config.json may have fields of rotary positions
  bool has_key_heads = true;  ///< and a number of heads of keys
  /// Reads a config.json, as transformers 4 and 5 write it. \throws FormatError naming `source`
  ModelConfig (*read)(const Family& family, const nlohmann::json& json, const std::string& source);
  nlohmann::json (*write)(const ModelConfig& config);
  /// Writes the fields with which transformers opens the model; null: write() does.
  nlohmann::json (*write_for_transformers)(const ModelConfig& config) = nullptr;
  std::vector<ParameterSpec> (*parameters)(const ModelConfig& config);
  /// Returns a model with the parameters that `has` names, of any sizes; nothing if they are of another kind.
  std::optional<ModelConfig> (*of_names)(const HasName& has);
};

const Kind& mingpt_kind();
const Kind& llama_kind();
const Kind& falcon_kind();

/// A model family: its kind, its traits and the defaults for fields that config.json may omit, as in transformers 5.23.
/// A new family is a row in family.cpp, the names of its new tensors in the file of its kind, and a fixture.
struct Family : FamilyFacts {
  const Kind* kind = nullptr;
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
  bool has_attention_bias = true;  ///< attention_bias applies to q, k, v and o; otherwise the field has no effect
  bool has_mlp_bias = false;
  bool has_softcaps = false;  ///< attn_logit_softcapping applies; otherwise the field has no effect
};

std::span<const Family> families();
/// Returns null if no family has this model_type.
const Family* find_family(std::string_view type);
/// The first family of the architecture, where the configuration says none of it.
const Family& family_of(const ModelConfig& config);

/// Returns how many layers 0, 1, ... have a member: prefix + number + member.
std::int64_t count_layers(const HasName& has, const std::string& prefix, const std::string& member);

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

/// The key of the positions that a model was trained on before its frequencies were scaled.
inline constexpr const char* kTrainedLength = "original_max_position_embeddings";

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

}  // namespace fsdp::config_detail
