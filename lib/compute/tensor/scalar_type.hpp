#pragma once
// Conversions between the element types of checkpoints (free of LibTorch), of ATen and of the kernels.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lib/base/types/dtype.hpp"
#include "lib/compute/kernels/kernels.hpp"

namespace fsdp {

/// \throws FormatError for an element type ATen lacks
c10::ScalarType to_scalar_type(DType dtype);
/// \throws std::logic_error for an ATen type no checkpoint can hold
DType to_dtype(c10::ScalarType type);
/// float32, bfloat16 or float16. \throws std::logic_error otherwise
kernels::Type kernel_type(c10::ScalarType type);
inline kernels::Type kernel_type(const at::Tensor& x) { return kernel_type(x.scalar_type()); }

}  // namespace fsdp
