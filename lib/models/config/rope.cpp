#include "lib/models/config/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
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
  const double trained_length = number(config, scaling, config_detail::kTrainedLength);
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
