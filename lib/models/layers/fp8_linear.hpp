#pragma once
// A matrix of a block multiplied in 8 bits: weights and inputs in e4m3, gradients in e5m2, each matrix with a scale of
// its own; sums as torchao's tensorwise recipe has them. Nothing in 8 bits outlives a micro-batch. Shapes as
// LinearGroup's.
#include <ATen/core/Tensor.h>

#include "lib/compute/ops/fp8.hpp"
#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

class Ops;

namespace detail {

/// out = x W^T. \param x8  x in 8 bits: made by the first of the matrices that read it
/// \param weight_OI  as it is, or gathered in 8 bits with its scale (lib/engine/fsdp/fp8_rows.hpp), below, too
void fp8_forward(const Ops& ops, const at::Tensor& out_NO, Fp8Matrix& x8, const at::Tensor& x_NI,
                 const at::Tensor& weight_OI);

/// grad_x (+)= grad W. \param grad_x_NI  undefined: the first one, which is made
/// \param keep  by columns, too, for fp8_weight_grad()
/// \return grad in 8 bits
Fp8Matrix fp8_backward(const Ops& ops, at::Tensor& grad_x_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI,
                       bool keep);

/// slot (+)= grad^T x. \param x8  x by columns: made by the first one
void fp8_weight_grad(const Ops& ops, GradSlot& slot, const Fp8Matrix& grad8, Fp8Matrix& x8, const at::Tensor& x_NI);

}  // namespace detail
}  // namespace fsdp
