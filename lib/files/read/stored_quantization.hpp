#pragma once
// Weights that a checkpoint stores as codes of a quantization: 4 bits as bitsandbytes and transformers store them,
// which are read, and the other methods, which are refused. Of a matrix W in 4 bits, W holds codes, W.absmax and
// W.nested_absmax scales, W.quant_state.bitsandbytes__nf4 the rest as JSON.
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lib/base/dtype.hpp"
#include "lib/files/formats/shard_record.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

struct StoredNf4 {
  std::size_t codes = 0, absmax = 0;         ///< tensors of the source
  std::optional<std::size_t> nested_absmax;  ///< absmax is in 8 bits
  float nested_offset = 0;
  Shape shape;                ///< of the matrix: [rows, columns]
  DType dtype = DType::bf16;  ///< that it was made of
};

/// By the names of matrices; empty where there is none. Reads the small tensors that say how.
/// \throws FormatError naming what is missing, is stored in another way, or does not fit
std::map<std::string, StoredNf4> find_stored_nf4(const Source& source);

/// Belongs to a matrix W in `found`, besides W itself: its absmax, quant_map, ...
bool is_part_of(const std::map<std::string, StoredNf4>& found, const std::string& name);

/// Whoever computes with the tensors asks this first: the converter for what makes numbers, and all that load a model.
/// Told by the quantization_config of config.json beside the tensors (stored_quantization()), and without that by
/// tensors that the usual methods store beside their codes.
/// \throws FormatError naming the method, and the tensor or file that tells
void refuse_other_quantization(const Source& source);

}  // namespace fsdp
