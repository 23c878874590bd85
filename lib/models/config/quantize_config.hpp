#pragma once
// Matrices of blocks in 4 bits (QLoRA: Dettmers et al., arXiv:2305.14314), as bitsandbytes stores them. Free of
// LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

struct QuantizeConfig {
  bool nf4 = false;           ///< false: matrices are kept as they are
  bool double_quant = false;  ///< the blocks' scales in 8 bits, too

  bool enabled() const { return nf4; }
  bool operator==(const QuantizeConfig&) const = default;
};

/// Elements of a flattened matrix that share a scale, and scales that share one. lib/compute/kernels/nf4_code.hpp has
/// the code.
inline constexpr std::int64_t kQuantizedBlock = 64, kNestedBlock = 256;

/// Suffixes of the names of a quantised matrix's scales. The codes have the name of the matrix.
inline constexpr const char* kAbsmax = ".absmax";
inline constexpr const char* kNestedAbsmax = ".nested_absmax";
inline constexpr const char* kNestedOffset = ".nested_offset";

/// parameter_table() with each matrix of the blocks as codes [blocks of 64, 32 bytes], then all matrices' scales:
/// absmax float32 [blocks]; with double_quant absmax byte [blocks], nested_absmax float32 [blocks of 256 of these],
/// nested_offset float32 [1]. Indices of the model's own parameters stay as they are. \throws UsageError
std::vector<ParameterSpec> quantized_table(const ModelConfig& config, const QuantizeConfig& quantize);

/// How the weights in DIR are stored, by the quantization_config of its config.json; nothing: not in 4 bits.
/// \throws FormatError naming what of it cannot be read
std::optional<QuantizeConfig> stored_quantization(const std::filesystem::path& directory);

/// What a run writes down, and how it is read back. \throws FormatError naming `source`
nlohmann::json quantization_to_json(const QuantizeConfig& quantize);
QuantizeConfig quantization_from_json(const nlohmann::json& json, const std::string& source);

/// "nf4", "nf4 with double quantisation" or "none".
std::string quantization_text(const QuantizeConfig& quantize);

}  // namespace fsdp
