#include "lib/models/config/quantize_config.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace {

using config_detail::field_or;

constexpr std::int64_t kBlock_bytes = kQuantizedBlock / 2;

std::int64_t parts(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

ParameterSpec scale_of(const ParameterSpec& matrix, const char* name, std::int64_t n, Storage storage) {
  ParameterSpec spec{matrix.name + name, {n}, Init::zeros, 0.0, false, matrix.block};
  spec.storage = storage;
  spec.stands_for = 0;
  return spec;
}

constexpr const char* kReadable = "bitsandbytes in 4 bits as nf4";

/// \param stored  a quantization_config
std::string quantization_method(const nlohmann::json& stored, const std::string& source) {
  const auto method = field_or(stored, "quant_method", std::string("a method that it does not name"), source);
  if (method != "bitsandbytes") return method;
  if (!field_or(stored, "load_in_4bit", false, source)) return method + " in 8 bits";
  return method + " in 4 bits as " + field_or(stored, "bnb_4bit_quant_type", std::string("fp4"), source);
}

}  // namespace

std::vector<ParameterSpec> quantized_table(const ModelConfig& config, const QuantizeConfig& quantize) {
  auto table = parameter_table(config);
  if (!quantize.enabled()) return table;
  std::vector<ParameterSpec> scales;
  for (auto& spec : table) {
    if (!spec.is_matrix_of_block()) continue;
    const auto elements = spec.shape[0] * spec.shape[1];
    const auto blocks = parts(elements, kQuantizedBlock);
    if (!quantize.double_quant) {
      scales.push_back(scale_of(spec, kAbsmax, blocks, Storage::float32));
    } else {
      scales.push_back(scale_of(spec, kAbsmax, blocks, Storage::byte));
      scales.push_back(scale_of(spec, kNestedAbsmax, parts(blocks, kNestedBlock), Storage::float32));
      scales.push_back(scale_of(spec, kNestedOffset, 1, Storage::float32));
    }
    spec.shape = {blocks, kBlock_bytes};
    spec.init = Init::zeros;
    spec.decay = false;
    spec.storage = Storage::byte;
    spec.stands_for = elements;
    spec.same_input = 0;  // each matrix is dequantized separately
  }
  table.insert(table.end(), scales.begin(), scales.end());
  return table;
}

std::optional<QuantizeConfig> stored_quantization(const std::filesystem::path& directory) {
  const auto file = directory / "config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return std::nullopt;
  return stored_quantization(parse_json_or_discard(read_text_file(file, 1u << 20), file.string()), file.string());
}

std::optional<QuantizeConfig> stored_quantization(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object() || !json.contains("quantization_config")) return std::nullopt;
  const auto& stored = json["quantization_config"];
  if (stored.is_null()) return std::nullopt;
  if (!stored.is_object()) throw FormatError(source + ": quantization_config is no object");
  const auto method = quantization_method(stored, source);
  if (method != kReadable)
    throw FormatError(fmt::format(
        "{}: its quantization_config says that the weights are quantised by {}, which cannot be read as numbers: {} "
        "can. Give the model as it was before",
        source, method, kReadable));
  return QuantizeConfig{true, field_or(stored, "bnb_4bit_use_double_quant", false, source)};
}

nlohmann::json quantization_to_json(const QuantizeConfig& quantize) {
  return {{"type", quantize.nf4 ? "nf4" : "none"}, {"double_quant", quantize.double_quant}};
}

QuantizeConfig quantization_from_json(const nlohmann::json& json, const std::string& source) {
  const auto type = config_detail::field<std::string>(json, "type", source);
  if (type != "nf4" && type != "none") throw FormatError(source + ": quantisation '" + type + "' is not known");
  return {type == "nf4", field_or(json, "double_quant", false, source)};
}

std::string quantization_text(const QuantizeConfig& quantize) {
  if (!quantize.enabled()) return "none";
  return quantize.double_quant ? "nf4 with double quantisation" : "nf4";
}

}  // namespace fsdp
