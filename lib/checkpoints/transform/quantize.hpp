#pragma once
// Quantizes matrices of blocks to 4 bits, as transformers stores those of bitsandbytes (--quantize nf4), and
// dequantizes them again (--dequantize).
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// Returns `source` with each matrix W of its blocks ("model.layers.3.mlp.up_proj.weight") as codes W, uint8 [bytes,
/// 1], and W.absmax, W.quant_map, W.nested_absmax, W.nested_quant_map (with double_quant) and
/// W.quant_state.bitsandbytes__nf4: bit for bit what bitsandbytes makes. Other tensors pass through. Lazy: a matrix is
/// read once for its codes and once for its scales, some blocks at a time.
/// \throws RequestError when there is no such matrix, or the matrices are already in 4 bits; on reading, FormatError
/// naming a matrix with elements that are not finite
std::unique_ptr<Source> quantize_nf4(std::shared_ptr<const Source> source, const QuantizeConfig& quantize);

/// The quantization_config of config.json for such a model, as transformers writes it. \param compute  type of matrix
/// products
nlohmann::json hf_quantization_config(const QuantizeConfig& quantize, DType compute);

/// Returns `source` with each 4-bit matrix of bitsandbytes in the type that it was quantized from, bit for bit as
/// bitsandbytes dequantizes it, and without the tensors that describe the codes. Returns `source` itself when there is
/// no such matrix. Lazy. \throws what find_stored_nf4() throws
std::shared_ptr<const Source> dequantize(std::shared_ptr<const Source> source);

/// Returns `source` with each matrix of float8 in blocks as float32: the code times the scale of its block, as
/// PyTorch's QuantizedHuggingFaceStorageReader does. Scales are left out. Returns `source` itself when there is no such
/// matrix. Lazy. \throws what find_stored_fp8() throws
std::shared_ptr<const Source> dequantize_fp8(std::shared_ptr<const Source> source);

}  // namespace fsdp
