#pragma once
// 4-bit matrices of blocks (QLoRA: Dettmers et al., arXiv:2305.14314) in the format of bitsandbytes. Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

struct QuantizeConfig {
  bool nf4 = false;           ///< false: matrices are not quantised
  bool double_quant = false;  ///< also store the blocks' scales in 8 bits

  bool enabled() const { return nf4; }
  bool operator==(const QuantizeConfig&) const = default;
};

/// Elements of a flattened matrix per scale, and scales per nested scale. The code is in
/// lib/compute/kernels/nf4_code.hpp.
inline constexpr std::int64_t kQuantizedBlock = 64, kNestedBlock = 256;

/// Suffixes that name the scales of a quantised matrix. Its codes keep the name of the matrix.
inline constexpr const char* kAbsmax = ".absmax";
inline constexpr const char* kNestedAbsmax = ".nested_absmax";
inline constexpr const char* kNestedOffset = ".nested_offset";

/// \return parameter_table() with each matrix of the blocks as codes [blocks of 64, 32 bytes], followed by the scales
/// of all matrices: absmax float32 [blocks]; with double_quant absmax byte [blocks], nested_absmax float32 [blocks of
/// 256 scales], nested_offset float32 [1]. The indices of the model's own parameters do not change. \throws
/// RequestError
std::vector<ParameterSpec> quantized_table(const ModelConfig& config, const QuantizeConfig& quantize);

/// \return how the weights in DIR are quantised, according to quantization_config in config.json; nullopt: not in 4
/// bits
/// \throws FormatError naming the unsupported or invalid field
std::optional<QuantizeConfig> stored_quantization(const std::filesystem::path& directory);
/// The same of the content of a config.json. \param source  name of the file, for messages
std::optional<QuantizeConfig> stored_quantization(const nlohmann::json& config, const std::string& source);

/// Convert to and from the JSON that a run stores. \throws FormatError naming `source`
nlohmann::json quantization_to_json(const QuantizeConfig& quantize);
QuantizeConfig quantization_from_json(const nlohmann::json& json, const std::string& source);

/// \return "nf4", "nf4 with double quantisation" or "none"
std::string quantization_text(const QuantizeConfig& quantize);

}  // namespace fsdp
