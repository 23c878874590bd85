// Rotary positions in config.json: the fields of transformers 4 and 5.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace config_detail {
namespace {

constexpr const char* kSlidingPart = "sliding_attention";
constexpr const char* kFullPart = "full_attention";
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

bool is_rope_kind(std::string_view kind) {
  return kind == "default" || kind == "linear" || kind == "llama3" || kind == "dynamic" || kind == "yarn" ||
         kind == "longrope";
}

}  // namespace config_detail

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

}  // namespace fsdp
