#include "lib/models/config/rope.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace {

/// \throws FormatError that names where the configuration comes from
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

/// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
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
    double kept = 0;  // how much of the frequency stays as it is
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
    number(config, scaling, "factor");  // changes nothing up to max_position_embeddings
  } else if (!config_detail::is_rope_kind(type)) {
    refuse(config, "rope_scaling is '" + type + "'; supported: linear, llama3, dynamic");
  }
  return frequencies;
}

}  // namespace fsdp
