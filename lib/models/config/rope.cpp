#include "lib/models/config/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";
constexpr const char* kTrainedLength = "original_max_position_embeddings";

/// Reads rotary positions from config.json. transformers 4 stores base, scaling and rotated fraction in top-level
/// fields, transformers 5 in the object rope_parameters, and each version reads some fields of the other. This class
/// reads the file as each version does (4.57: the modeling files and modeling_rope_utils.py; 5.23:
/// convert_rope_params_to_dict) and rejects files that the two read differently.
class RopeReader {
 public:
  RopeReader(const Family& family, const nlohmann::json& json, const std::string& source)
      : family_(family), json_(json), source_(source), has_local_(family.traits.local_rope_theta > 0) {
    for (const auto* name : {"rope_scaling", "rope_parameters"})
      if (has(name) && !json.at(name).is_object()) refuse(name, json.at(name), "it must be a JSON object, or null");
  }

  RopeFields read() const {
    const auto newer = as_version_5();
    if (!newer.scaling.is_null() && !is_supported(newer)) return newer;  // rejected where the frequencies are computed
    const auto older = as_version_4();
    const bool newer_alone = has("rope_parameters") && !json_.contains("rope_theta") && !has("rope_scaling") &&
                             !(has_local_ && json_.contains("rope_local_base_freq"));
    if (!json_.contains("partial_rotary_factor") && newer_alone) return newer;
    compare("partial_rotary_factor", older.fraction, newer.fraction);
    if (newer_alone) return newer;  // version 4 does not read rope_parameters at all
    compare("rope_theta", older.theta, newer.theta);
    if (has_local_) compare("rope_local_base_freq", older.local_theta, newer.local_theta);
    compare("rope_scaling", older.scaling, newer.scaling);
    return newer;
  }

 private:
  bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }

  [[noreturn]] void refuse(const std::string& name, const nlohmann::json& value, const std::string& wanted) const {
    throw FormatError(fmt::format("{}: field '{}' is {}; for model_type {} {}", source_, name, json_text(value),
                                  family_.type, wanted));
  }

  void compare(const char* name, const nlohmann::json& older, const nlohmann::json& newer) const {
    if (older == newer) return;
    throw FormatError(fmt::format(
        "{}: transformers 4 and 5 read '{}' differently: {} and {}, because of '{}'. Keep rope_theta, rope_scaling and "
        "what belongs to them at one place: the first at the top of the file, the kind of scaling and its numbers in "
        "rope_scaling, and no rope_parameters",
        source_, name, json_text(older), json_text(newer),
        has("rope_parameters") ? "rope_parameters"
        : has(kTrainedLength)  ? kTrainedLength
                               : "rope_scaling"));
  }

  /// Rejects null, as both versions do.
  double number(const nlohmann::json& object, const char* name, double otherwise) const {
    return object.contains(name) ? field<double>(object, name, source_) : otherwise;
  }

  /// \return the kind of scaling. \param where  name of the object
  std::string kind_of(const nlohmann::json& object, const std::string& where, bool must_be_said) const {
    const bool old_name = object.contains("type"), name = object.contains("rope_type");
    if (old_name && name && object.at("type") != object.at("rope_type"))
      refuse(where, object, "rope_type and type must say the same");
    // Gemma 3 only reads the newer name; it would silently ignore the scaling.
    if (old_name && !name && has_local_) refuse(where, object, "the kind of scaling is called rope_type");
    if (!old_name && !name && must_be_said) refuse(where, object, "it must say its rope_type");
    return name       ? field<std::string>(object, "rope_type", source_)
           : old_name ? field<std::string>(object, "type", source_)
                      : "default";
  }

  static bool is_supported(const RopeFields& rope) {
    const auto& kind = rope.scaling.contains("rope_type") ? rope.scaling.at("rope_type") : rope.scaling.at("type");
    return is_rope_kind(kind.get<std::string>());
  }

  static nlohmann::json without_theta(nlohmann::json object, const std::string& kind) {
    if (kind == "default") return nullptr;
    object.erase("rope_theta");
    object.erase("partial_rotary_factor");
    if (!object.contains("rope_type") && !object.contains("type")) object["rope_type"] = kind;
    return object;
  }

  RopeFields as_version_4() const {
    RopeFields rope = at_top();
    if (!has("rope_scaling")) return rope;
    const auto& scaling = json_.at("rope_scaling");
    rope.scaling = without_theta(scaling, kind_of(scaling, "rope_scaling", true));
    return rope;
  }

  RopeFields at_top() const {
    return {number(json_, "rope_theta", family_.rope_theta),
            has_local_ ? number(json_, "rope_local_base_freq", family_.traits.local_rope_theta) : 0,
            number(json_, "partial_rotary_factor", 1), nullptr};
  }

  RopeFields as_version_5() const {
    RopeFields rope = at_top();
    const bool older = has("rope_scaling");
    const std::string where = older ? "rope_scaling" : "rope_parameters";
    nlohmann::json object = older ? json_.at("rope_scaling") : nlohmann::json::object();
    if (has("rope_parameters")) {
      const auto& parameters = json_.at("rope_parameters");
      const bool by_type = parameters.contains(kFull) || parameters.contains(kSliding);
      if (has_local_) {
        auto full = by_layer_type(parameters, rope);
        full.update(object);
        object = std::move(full);
      } else if (by_type) {
        refuse("rope_parameters", parameters, "all layers turn alike");
      } else if (!older) {
        object = parameters;
      }
    }
    const auto kind = kind_of(object, where, older);
    rope.theta = number(object, "rope_theta", rope.theta);
    rope.fraction = fraction_of(object, kind, rope.fraction);
    rope.scaling = without_theta(object, kind);
    // In version 5, a top-level field overrides the one in rope_parameters, except for models with several layer types.
    if (kind == "llama3" && !has_local_ && json_.contains(kTrainedLength))
      rope.scaling[kTrainedLength] = json_.at(kTrainedLength);
    return rope;
  }

  double fraction_of(const nlohmann::json& object, const std::string& kind, double otherwise) const {
    const bool unread = kind == "default" && !family_.traits.fused_projections;
    const bool is_null = object.contains("partial_rotary_factor") && object.at("partial_rotary_factor").is_null();
    return unread && is_null ? otherwise : number(object, "partial_rotary_factor", otherwise);
  }

  /// \return the parameters of full-attention layers. Sliding layers may only differ by their base, which is stored in
  /// `rope`.
  nlohmann::json by_layer_type(const nlohmann::json& both, RopeFields& rope) const {
    if (!both.contains(kFull) || !both.contains(kSliding) || !both[kFull].is_object() || !both[kSliding].is_object())
      refuse("rope_parameters", both, fmt::format("it must have {} and {}", kFull, kSliding));
    const auto& local = both[kSliding];
    if (kind_of(local, "rope_parameters", false) != "default" || number(local, "partial_rotary_factor", 1) != 1)
      refuse("rope_parameters", both, "layers that slide are not scaled");
    rope.local_theta = number(local, "rope_theta", rope.local_theta);
    return both[kFull];
  }

  const Family& family_;
  const nlohmann::json& json_;
  const std::string& source_;
  bool has_local_;  ///< sliding layers have a base of their own
};

}  // namespace

RopeFields read_rope(const Family& family, const nlohmann::json& json, const std::string& source) {
  return RopeReader(family, json, source).read();
}

void write_rope(const Family& family, const RopeFields& rope, nlohmann::json& json) {
  json.erase("rope_parameters");
  json["rope_theta"] = rope.theta;
  json["rope_scaling"] = rope.scaling;
  json.erase("partial_rotary_factor");
  if (family.traits.fused_projections) json["partial_rotary_factor"] = rope.fraction;
  if (family.traits.local_rope_theta > 0) json["rope_local_base_freq"] = rope.local_theta;
}

}  // namespace fsdp::config_detail

namespace fsdp {

bool spell_rope_for_all(nlohmann::json& json, const std::string& source) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) return false;
  const auto* family = config_detail::find_family(type->get_ref<const std::string&>());
  if (family == nullptr) return false;
  const auto rope = config_detail::read_rope(*family, json, source);
  const auto parameters = json.find("rope_parameters");
  if (parameters == json.end() || parameters->is_null()) return false;
  config_detail::write_rope(*family, rope, json);
  return true;
}

namespace {

/// \throws FormatError naming the configuration's source
[[noreturn]] void refuse(const ModelConfig& config, const std::string& what) {
  throw FormatError((config.source.empty() ? "config.json" : config.source) + ": " + what);
}

double number(const ModelConfig& config, const nlohmann::json& scaling, const char* name) {
  const auto found = scaling.find(name);
  if (found == scaling.end() || !found->is_number() || !(found->get<double>() > 0)) {
    refuse(config, std::string("rope_scaling: '") + name + "' must be a number above 0");
  }
  return found->get<double>();
}

/// Llama 3.1: divides the frequencies of long wavelengths by `factor`, keeps those of short ones, and interpolates
/// between.
void scale_llama3(std::vector<float>& frequencies, const ModelConfig& config, const nlohmann::json& scaling) {
  const double factor = number(config, scaling, "factor");
  const double low = number(config, scaling, "low_freq_factor");
  const double high = number(config, scaling, "high_freq_factor");
  const double trained_length = number(config, scaling, "original_max_position_embeddings");
  if (!(high > low)) {
    refuse(config, "rope_scaling: high_freq_factor must be above low_freq_factor");
  }
  for (auto& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / static_cast<double>(frequency);
    if (wavelength < trained_length / high) continue;
    double kept = 0;  // weight of the unscaled frequency
    if (wavelength <= trained_length / low) kept = (trained_length / wavelength - low) / (high - low);
    frequency = static_cast<float>((1 - kept) * static_cast<double>(frequency) / factor +
                                   kept * static_cast<double>(frequency));
  }
}

}  // namespace

bool config_detail::is_rope_kind(std::string_view kind) {
  return kind == "default" || kind == "linear" || kind == "llama3" || kind == "dynamic";
}

std::vector<float> rope_frequencies(const ModelConfig& config, bool slides) {
  const auto width = config.head_width(), rotated = config.rotary_width();
  if (rotated < 1 || 2 * config.rotary_pairs() > width) {
    refuse(config, "head_dim " + std::to_string(width) +
                       (width % 2 != 0 ? " is odd" : " is too small for partial_rotary_factor") +
                       ": rotary positions turn pairs of elements");
  }
  const bool local = slides && config.traits.local_rope_theta > 0;
  const double theta = local ? config.traits.local_rope_theta : config.rope_theta;
  if (!(theta > 0) || !std::isfinite(theta)) {
    refuse(config, std::string(local ? "rope_local_base_freq" : "rope_theta") + " must be a number above 0");
  }
  std::vector<float> frequencies;
  for (std::int64_t j = 0; j < rotated; j += 2) {
    const auto exponent = static_cast<float>(j) / static_cast<float>(rotated);
    frequencies.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  if (config.rope_scaling.empty() || local) return frequencies;
  const auto scaling = parse_json_or_discard(config.rope_scaling, "rope_scaling");
  const auto text = [&](const char* name) {
    const auto found = scaling.is_object() ? scaling.find(name) : scaling.end();
    return found != scaling.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto type = text("rope_type").empty() ? text("type") : text("rope_type");
  if (type == "linear") {
    const auto factor = static_cast<float>(number(config, scaling, "factor"));
    for (auto& frequency : frequencies) frequency /= factor;
  } else if (type == "llama3") {
    scale_llama3(frequencies, config, scaling);
  } else if (type == "dynamic") {
    number(config, scaling, "factor");  // only validated: dynamic scaling changes nothing up to max_position_embeddings
  } else if (!config_detail::is_rope_kind(type)) {
    refuse(config, "rope_scaling is '" + type + "'; supported: linear, llama3, dynamic");
  }
  return frequencies;
}

}  // namespace fsdp
