#pragma once
// Tensors that a cast into 8 bits writes; internal to lib/compute/ops.
#include <ATen/ops/empty.h>

#include "lib/compute/ops/fp8.hpp"

namespace fsdp::detail {

/// What is asked for and not there yet. \param codes  options of the codes
inline void make_room(Fp8Matrix& made, const at::Tensor& x_RC, const at::TensorOptions& codes, Fp8Sides sides) {
  if (!made.inverse.defined()) made.inverse = at::empty({1}, codes.dtype(at::kFloat));
  if (sides != Fp8Sides::columns && !made.rows_RC.defined()) made.rows_RC = at::empty(x_RC.sizes(), codes);
  if (sides != Fp8Sides::rows && !made.columns_CR.defined())
    made.columns_CR = at::empty({x_RC.size(1), fp8_padded(x_RC.size(0))}, codes);
}

}  // namespace fsdp::detail
