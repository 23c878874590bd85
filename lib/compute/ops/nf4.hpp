#pragma once
// Quantization of weights to NF4 on the host, bit for bit as bitsandbytes' CPU code; runs once, when weights are
// loaded.
#include <ATen/core/Tensor.h>

namespace fsdp {

struct Nf4Blocks {
  at::Tensor codes;   ///< bytes [blocks, 32]
  at::Tensor absmax;  ///< float32 [blocks]
};

/// \param values  finite float32 elements of a flattened matrix, starting at a block boundary
Nf4Blocks quantize_nf4(const at::Tensor& values);

struct NestedScales {
  at::Tensor codes;   ///< bytes [blocks]
  at::Tensor absmax;  ///< float32 [ceil(blocks / 256)]
  at::Tensor offset;  ///< float32 [1]
};

/// Quantizes the scales (double quantization). The result does not depend on the number of threads or the processor.
/// \param absmax  scales of all blocks of a matrix
NestedScales quantize_scales(const at::Tensor& absmax);

}  // namespace fsdp
