#pragma once
// Weights into 4 bits, as bitsandbytes does it on a CPU: once, on the host, when they are loaded.
#include <ATen/core/Tensor.h>

namespace fsdp {

struct Nf4Blocks {
  at::Tensor codes;   ///< bytes [blocks, 32]
  at::Tensor absmax;  ///< float32 [blocks]
};

/// \param values  float32 elements of a flattened matrix, from the beginning of a block on, finite
Nf4Blocks quantize_nf4(const at::Tensor& values);

struct NestedScales {
  at::Tensor codes;   ///< bytes [blocks]
  at::Tensor absmax;  ///< float32 [blocks of 256 of these]
  at::Tensor offset;  ///< float32 [1]
};

/// \param absmax  of all blocks of a matrix. The same on any number of threads and any processor
NestedScales quantize_scales(const at::Tensor& absmax);

}  // namespace fsdp
