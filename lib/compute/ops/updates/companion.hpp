#pragma once
// A tensor whose storage carries a second tensor. Every view of it can find the second one, so functions in between
// need no extra argument.
#include <ATen/core/Tensor.h>

namespace fsdp {

/// A tensor over the memory of `x` whose storage refers to `companion` and keeps both alive. \param x  contiguous
at::Tensor with_companion(const at::Tensor& x, const at::Tensor& companion);

/// The companion of the storage of `view`, whole; undefined if there is none.
at::Tensor companion_of(const at::Tensor& view);

}  // namespace fsdp
