#pragma once
// Tensors that bring another one along: views of them find it, and who passes them on need not know.
#include <ATen/core/Tensor.h>

namespace fsdp {

/// The memory of `x` under a storage that remembers `companion` and keeps both alive. \param x  dense
at::Tensor with_companion(const at::Tensor& x, const at::Tensor& companion);

/// What the storage of a view of such a tensor remembers, as it was given; undefined where there is none.
at::Tensor companion_of(const at::Tensor& view);

}  // namespace fsdp
