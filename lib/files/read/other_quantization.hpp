#pragma once
// Weights that are codes of a quantisation that is not ours: their numbers alone are not the model's.
#include "lib/files/read/source.hpp"

namespace fsdp {

/// Whoever computes with the tensors asks this first: the converter for what makes numbers, and all that load a model.
/// Told by the quantization_config of config.json beside the tensors (stored_quantization()), and without that by
/// tensors that the usual methods store beside their codes.
/// \throws FormatError naming the method, and the tensor or file that tells
void refuse_other_quantization(const Source& source);

}  // namespace fsdp
