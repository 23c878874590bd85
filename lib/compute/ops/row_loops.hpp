#pragma once
// Helpers of CpuOps for calling the kernels; internal to lib/compute/ops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp::detail {

inline kernels::Type type_of(const at::Tensor& x) { return kernel_type(x.scalar_type()); }
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

inline const std::int32_t* positions_or_null(const TokenPositions& place) {
  return place.positions_N.defined() ? place.positions_N.const_data_ptr<std::int32_t>() : nullptr;
}

/// Rows of about 32768 elements, the least work that is worth a thread.
inline std::int64_t row_grain(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, row_elements));
}

}  // namespace fsdp::detail
