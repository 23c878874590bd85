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

constexpr const char* kSlidingPart = "sliding_attention";
constexpr const char* kFullPart = "full_attention";
constexpr const char* kTrainedLength = "original_max_position_embeddings";
constexpr std::int64_t kPhi3TrainedLength = 4096;  // where its config.json says none

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
    if (is_phi3()) return phi3_kind(object, where);
    if (old_name && name && object.at("type") != object.at("rope_type"))
      refuse(where, object, "rope_type and type must say the same");
    // Gemma 3 only reads the newer name; it would silently ignore the scaling.
    if (old_name && !name && has_local_) refuse(where, object, "the kind of scaling is called rope_type");
    if (!old_name && !name && must_be_said) refuse(where, object, "it must say its rope_type");
    return name       ? field<std::string>(object, "rope_type", source_)
           : old_name ? field<std::string>(object, "type", source_)
                      : "default";
  }

  /// Phi-3 knows one kind by three names.
  std::string phi3_kind(const nlohmann::json& object, const std::string& where) const {
    std::string kind;
    for (const auto* name : {"type", "rope_type"}) {
      if (!object.contains(name)) continue;
      auto said = field<std::string>(object, name, source_);
      if (said == "su" || said == "yarn") said = "longrope";
      if (!kind.empty() && said != kind) refuse(where, object, "rope_type and type must say the same");
      kind = said;
    }
    if (kind.empty() && where == "rope_scaling") refuse(where, object, "it must say its type");
    if (!kind.empty() && kind != "default" && kind != "longrope") refuse(where, object, "longrope is supported");
    return kind.empty() ? "default" : kind;
  }

  static bool is_supported(const RopeFields& rope) {
    const auto& kind = rope.scaling.contains("rope_type") ? rope.scaling.at("rope_type") : rope.scaling.at("type");
    return is_rope_kind(kind.get<std::string>());
  }

  nlohmann::json without_theta(nlohmann::json object, const std::string& kind) const {
    if (kind == "default") return nullptr;
    if (is_phi3()) {  // version 4 knows no rope_type here
      object.erase("rope_type");
      object["type"] = kind;
    }
    object.erase("rope_theta");
    object.erase("partial_rotary_factor");
    if (!object.contains("rope_type") && !object.contains("type")) object["rope_type"] = kind;
    return object;
  }

  RopeFields as_version_4() const {
    RopeFields rope = at_top();
    if (!has("rope_scaling")) return rope;
    const auto& scaling = json_.at("rope_scaling");
    const auto kind = kind_of(scaling, "rope_scaling", true);
    rope.scaling = without_theta(scaling, kind);
    const bool says_factor = rope.scaling.contains("factor") && has(kTrainedLength);
    if (is_phi3() || kind == "yarn") {
      add_trained_length(rope.scaling, is_phi3());
    } else if (kind == "longrope") {
      rope.scaling.erase(kTrainedLength);
      add_trained_length(rope.scaling, true);
      if (says_factor) rope.scaling["factor"] = positions() / number(json_, kTrainedLength, 1);
    }
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
      const bool by_type = parameters.contains(kFullPart) || parameters.contains(kSlidingPart);
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
    if (kind == "yarn" || kind == "longrope") add_trained_length(rope.scaling, !has_local_);
    return rope;
  }

  bool is_phi3() const { return family_.traits.fused_projections; }
  double positions() const { return number(json_, "max_position_embeddings", static_cast<double>(family_.positions)); }

  /// Adds the trained length that transformers takes where the scaling says none: all positions, except for Phi-3.
  /// \param from_top  a top-level field counts, and overrides the one in the scaling
  void add_trained_length(nlohmann::json& scaling, bool from_top) const {
    if (scaling.is_null()) return;
    if (from_top && has(kTrainedLength)) {
      scaling[kTrainedLength] = json_.at(kTrainedLength);
    } else if (is_phi3()) {
      scaling[kTrainedLength] = kPhi3TrainedLength;
    } else if (!scaling.contains(kTrainedLength)) {
      scaling[kTrainedLength] = json_.contains("max_position_embeddings") ? json_.at("max_position_embeddings")
                                                                          : nlohmann::json(family_.positions);
    }
  }

  double fraction_of(const nlohmann::json& object, const std::string& kind, double otherwise) const {
    const bool unread = kind == "default" && !family_.traits.fused_projections;
    const bool is_null = object.contains("partial_rotary_factor") && object.at("partial_rotary_factor").is_null();
    return unread && is_null ? otherwise : number(object, "partial_rotary_factor", otherwise);
  }

  /// \return the parameters of full-attention layers. Sliding layers may only differ by their base, which is stored in
  /// `rope`.
  nlohmann::json by_layer_type(const nlohmann::json& both, RopeFields& rope) const {
    if (!both.contains(kFullPart) || !both.contains(kSlidingPart) || !both[kFullPart].is_object() ||
        !both[kSlidingPart].is_object())
      refuse("rope_parameters", both, fmt::format("it must have {} and {}", kFullPart, kSlidingPart));
    const auto& local = both[kSlidingPart];
    if (kind_of(local, "rope_parameters", false) != "default" || number(local, "partial_rotary_factor", 1) != 1)
      refuse("rope_parameters", both, "layers that slide are not scaled");
    rope.local_theta = number(local, "rope_theta", rope.local_theta);
    return both[kFullPart];
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
  if (family.traits.fused_projections) {
    json["partial_rotary_factor"] = rope.fraction;
    if (!rope.scaling.is_null()) {  // version 4 wants the trained length outside
      json[kTrainedLength] = rope.scaling.at(kTrainedLength);
      json["rope_scaling"].erase(kTrainedLength);
    }
  }
  if (family.traits.local_rope_theta > 0) json["rope_local_base_freq"] = rope.local_theta;
}

}  // namespace fsdp::config_detail

namespace fsdp {

bool spell_rope_for_all(nlohmann::json& json, const std::string& source) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) return false;
  const auto* family = config_detail::find_family(type->get_ref<const std::string&>());
  if (family == nullptr || !family->kind->has_rotary) return false;
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

/// rope_scaling of a decoder's layers; null: none.
nlohmann::json scaling_of(const ModelConfig& config, bool slides) {
  const bool local = slides && config.traits.local_rope_theta > 0;
  if (config.rope_scaling.empty() || local) return nullptr;
  auto scaling = parse_json_or_discard(config.rope_scaling, "rope_scaling");
  if (!scaling.is_object()) refuse(config, "rope_scaling must be a JSON object");
  return scaling;
}

std::string kind_of(const nlohmann::json& scaling) {
  for (const auto* name : {"rope_type", "type"}) {
    const auto found = scaling.is_object() ? scaling.find(name) : scaling.end();
    if (found != scaling.end() && found->is_string() && !found->get_ref<const std::string&>().empty())
      return found->get<std::string>();
  }
  return scaling.is_null() ? "default" : "";
}

/// \return a number above 0; `otherwise` where the field is absent or null
double number_or(const ModelConfig& config, const nlohmann::json& scaling, const char* name, double otherwise) {
  const auto found = scaling.find(name);
  return found == scaling.end() || found->is_null() ? otherwise : number(config, scaling, name);
}

/// Positions that the model was trained on before its frequencies were scaled.
double trained_length(const ModelConfig& config, const nlohmann::json& scaling) {
  return number_or(config, scaling, config_detail::kTrainedLength, static_cast<double>(config.block_size));
}

/// The factor of yarn and longrope by which rows became longer. yarn must say it, if only as null.
double stretch(const ModelConfig& config, const nlohmann::json& scaling) {
  if (kind_of(scaling) == "yarn" && !scaling.contains("factor")) return number(config, scaling, "factor");
  return number_or(config, scaling, "factor", static_cast<double>(config.block_size) / trained_length(config, scaling));
}

/// Base for rows of `length` tokens: grows with rows beyond the model's positions (dynamic NTK scaling).
double dynamic_theta(const ModelConfig& config, const nlohmann::json& scaling, std::int64_t length) {
  const auto factor = number(config, scaling, "factor");
  const auto rotated = static_cast<double>(config.rotary_width());
  if (length <= config.block_size || rotated <= 2) return config.rope_theta;
  const auto longer = static_cast<double>(length) / static_cast<double>(config.block_size);
  return config.rope_theta * std::pow(factor * longer - (factor - 1), rotated / (rotated - 2));
}

/// YaRN (Peng et al., arXiv:2309.00071): keeps high frequencies, divides low ones by `factor`, and interpolates between
/// the pairs that turn beta_fast and beta_slow times in the trained length.
void scale_yarn(std::vector<float>& frequencies, const ModelConfig& config, const nlohmann::json& scaling) {
  const auto factor = stretch(config, scaling), length = trained_length(config, scaling);
  const auto rotated = static_cast<double>(config.rotary_width());
  const auto pair_that_turns = [&](double times) {
    return rotated * std::log(length / (times * 2 * std::numbers::pi)) / (2 * std::log(config.rope_theta));
  };
  auto low = pair_that_turns(number_or(config, scaling, "beta_fast", 32));
  auto high = pair_that_turns(number_or(config, scaling, "beta_slow", 1));
  if (scaling.value("truncate", nlohmann::json()) != false) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotated - 1);
  if (low == high) high += 0.001;
  for (std::size_t j = 0; j < frequencies.size(); ++j) {
    const auto share = static_cast<float>((static_cast<double>(j) - low) / (high - low));
    const auto kept = 1.0f - std::clamp(share, 0.0f, 1.0f);
    const auto divided = frequencies[j] / static_cast<float>(factor);
    frequencies[j] = divided * (1.0f - kept) + frequencies[j] * kept;
  }
}

/// LongRoPE (Ding et al., arXiv:2402.13753): a divisor for each pair, of two lists; long rows use the second.
void scale_longrope(std::vector<float>& frequencies, const ModelConfig& config, const nlohmann::json& scaling,
                    std::int64_t length) {
  const bool is_long = static_cast<double>(length) > trained_length(config, scaling);
  for (const auto* name : {"short_factor", "long_factor"}) {
    const auto found = scaling.find(name);
    const auto is_divisor = [](const nlohmann::json& x) { return x.is_number() && x.get<double>() > 0; };
    if (found == scaling.end() || !found->is_array() || found->size() != frequencies.size() ||
        !std::all_of(found->begin(), found->end(), is_divisor))
      refuse(config, fmt::format("rope_scaling: '{}' must be {} numbers above 0", name, frequencies.size()));
    if (is_long != (name == std::string_view("long_factor"))) continue;
    for (std::size_t j = 0; j < frequencies.size(); ++j) frequencies[j] /= (*found)[j].get<float>();
  }
}

}  // namespace

bool config_detail::is_rope_kind(std::string_view kind) {
  return kind == "default" || kind == "linear" || kind == "llama3" || kind == "dynamic" || kind == "yarn" ||
         kind == "longrope";
}

std::vector<float> rope_frequencies(const ModelConfig& config, bool slides, std::int64_t length) {
  const auto width = config.head_width(), rotated = config.rotary_width();
  if (rotated < 1 || 2 * config.rotary_pairs() > width) {
    refuse(config, "head_dim " + std::to_string(width) +
                       (width % 2 != 0 ? " is odd" : " is too small for partial_rotary_factor") +
                       ": rotary positions turn pairs of elements");
  }
  const bool local = slides && config.traits.local_rope_theta > 0;
  double theta = local ? config.traits.local_rope_theta : config.rope_theta;
  if (!(theta > 0) || !std::isfinite(theta)) {
    refuse(config, std::string(local ? "rope_local_base_freq" : "rope_theta") + " must be a number above 0");
  }
  const auto scaling = scaling_of(config, slides);
  const auto kind = kind_of(scaling);
  if (!config_detail::is_rope_kind(kind)) {
    refuse(config, "rope_scaling is '" + kind + "'; supported: linear, llama3, dynamic, yarn, longrope");
  }
  if (kind == "dynamic") theta = dynamic_theta(config, scaling, length);
  std::vector<float> frequencies;
  for (std::int64_t j = 0; j < rotated; j += 2) {
    const auto exponent = static_cast<float>(j) / static_cast<float>(rotated);
    frequencies.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  if (kind == "linear") {
    const auto factor = static_cast<float>(number(config, scaling, "factor"));
    for (auto& frequency : frequencies) frequency /= factor;
  } else if (kind == "llama3") {
    scale_llama3(frequencies, config, scaling);
  } else if (kind == "yarn") {
    scale_yarn(frequencies, config, scaling);
  } else if (kind == "longrope") {
    scale_longrope(frequencies, config, scaling, length);
  }
  return frequencies;
}

double rope_attention_factor(const ModelConfig& config, bool slides) {
  const auto scaling = scaling_of(config, slides);
  const auto kind = kind_of(scaling);
  if (kind != "yarn" && kind != "longrope") return 1;
  const auto said = number_or(config, scaling, "attention_factor", 0);
  if (said > 0) return said;
  const auto factor = stretch(config, scaling);
  if (factor <= 1) return 1;
  if (kind == "longrope") return std::sqrt(1 + std::log(factor) / std::log(trained_length(config, scaling)));
  const auto scale = [&](double mscale) { return 0.1 * mscale * std::log(factor) + 1; };
  const auto value = [&](const char* name) {  // 0 counts as absent
    const auto found = scaling.find(name);
    return found != scaling.end() && *found == 0 ? 0 : number_or(config, scaling, name, 0);
  };
  const auto mscale = value("mscale"), of_all = value("mscale_all_dim");
  return mscale > 0 && of_all > 0 ? scale(mscale) / scale(of_all) : scale(1);
}

double rope_stretch(const ModelConfig& config) { return stretch(config, scaling_of(config, false)); }

bool same_rope(const ModelConfig& config, std::int64_t length, std::int64_t other) {
  if (config.rope_scaling.empty() || length == 0) return true;
  return rope_frequencies(config, false, length) == rope_frequencies(config, false, other);
}

std::int64_t longest_row(const ModelConfig& config) {
  constexpr std::int64_t kMost = 1 << 24;  // as ModelConfig::validate()
  const auto scaling = scaling_of(config, false);
  const auto kind = kind_of(scaling);
  if (kind == "dynamic" || config.traits.alibi) return kMost;
  if ((kind != "linear" && kind != "yarn") || config.traits.local_rope_theta > 0) return config.block_size;
  const auto stretched = kind == "yarn" ? trained_length(config, scaling) * stretch(config, scaling)
                                        : static_cast<double>(config.block_size) * number(config, scaling, "factor");
  return std::max(config.block_size, static_cast<std::int64_t>(std::min(stretched, static_cast<double>(kMost))));
}

std::int64_t row_positions(const ModelConfig& config, std::int64_t asked) {
  return std::max(config.block_size, std::min(asked, longest_row(config)));
}

}  // namespace fsdp
