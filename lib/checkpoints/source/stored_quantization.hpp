#pragma once
// Weights that a checkpoint stores as codes of a quantization. Codes in 4 bits of bitsandbytes and transformers are
// read, float8 in blocks for --dequantize alone, those of other methods are refused. Of a 4-bit matrix W, the tensor W
// holds codes, W.absmax and W.nested_absmax scales, and W.quant_state.bitsandbytes__nf4 the rest as JSON.
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

struct StoredNf4 {
  std::size_t codes = 0, absmax = 0;         ///< numbers of tensors of the source
  std::optional<std::size_t> nested_absmax;  ///< set when absmax is quantized to 8 bits
  float nested_offset = 0;
  Shape shape;                ///< of the matrix: [rows, columns]
  DType dtype = DType::bf16;  ///< type of the original matrix
};

/// Finds the 4-bit matrices, by name; empty when there are none. Reads the small tensors that describe the codes.
/// \throws FormatError naming what is missing, is stored in an unsupported way, or does not fit
std::map<std::string, StoredNf4> find_stored_nf4(const Source& source);

/// A matrix X.weight of float8 whose blocks have a scale each in X.weight_scale_inv (DeepSeek's fp8).
struct StoredFp8 {
  std::size_t codes = 0, scales = 0;            ///< numbers of tensors of the source
  std::int64_t block_rows = 0, block_cols = 0;  ///< blocks at the edges are smaller
};

/// Finds these matrices, by name, where config.json beside the tensors says quant_method "fp8" and weight_block_size;
/// else none. \throws FormatError naming scales that do not fit
std::map<std::string, StoredFp8> find_stored_fp8(const Source& source);

/// True when `name` belongs to a matrix W in `found` without being W itself: its absmax, quant_map, ...
bool is_part_of(const std::map<std::string, StoredNf4>& found, const std::string& name);

/// True for W.quant_state.bitsandbytes__nf4, JSON that describes a matrix W in 4 bits.
bool is_nf4_state(const std::string& name);

/// Refuses a checkpoint whose weights are codes of another quantization. Must be called before tensors are used as
/// numbers: by the converter for transforms that compute, and by every loader of a model.
/// Recognises quantization by the quantization_config of config.json beside the tensors (stored_quantization()), and
/// without it by tensors that the usual methods store beside their codes.
/// \throws FormatError naming the method, and the tensor or file that shows it
void refuse_other_quantization(const Source& source);

}  // namespace fsdp
