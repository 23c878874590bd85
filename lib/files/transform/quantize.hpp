#pragma once
// Matrices of blocks into 4 bits, as transformers stores what bitsandbytes makes of them: --quantize nf4.
// Matrices stored in 4 bits as the floating-point numbers that they stand for.
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "lib/base/dtype.hpp"
#include "lib/files/read/source.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// `source` with each matrix W of its blocks ("model.layers.3.mlp.up_proj.weight") as codes W, uint8 [bytes, 1], and
/// W.absmax, W.quant_map, W.nested_absmax, W.nested_quant_map (with double_quant) and
/// W.quant_state.bitsandbytes__nf4: bit for bit what bitsandbytes makes of it. The rest passes through.
/// Stays lazy: a matrix is read once for its codes and once for its scales, some blocks at a time.
/// \throws UsageError where there is no such matrix, or they are in 4 bits; FormatError, when it is read, naming a
///         matrix with elements that are not finite
std::unique_ptr<Source> quantize_nf4(std::shared_ptr<const Source> source, const QuantizeConfig& quantize);

/// config.json's quantization_config of such a model, as transformers writes it. \param compute  type of products
nlohmann::json hf_quantization_config(const QuantizeConfig& quantize, DType compute);

/// `source` with each matrix that bitsandbytes stored in 4 bits as one of the type that it was made of, bit for bit
/// what bitsandbytes dequantises it to; what else it stored for these is left out. `source` itself where there is none.
/// Stays lazy. \throws what find_stored_nf4() throws
std::shared_ptr<const Source> dequantize(std::shared_ptr<const Source> source);

}  // namespace fsdp
