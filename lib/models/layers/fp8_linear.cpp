#include "lib/models/layers/fp8_linear.hpp"

#include <ATen/ops/empty.h>

#include "lib/compute/ops/companion.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp::detail {

namespace {

/// As it was gathered, else cast now.
Fp8Matrix weight_in_fp8(const Ops& ops, const at::Tensor& weight_OI, Fp8Sides sides) {
  if (weight_OI.scalar_type() != fp8_type(Fp8Format::e4m3)) return ops.to_fp8(weight_OI, Fp8Format::e4m3, sides);
  Fp8Matrix made{weight_OI, {}, companion_of(weight_OI)};
  if (sides == Fp8Sides::columns) made.columns_CR = ops.fp8_columns(weight_OI);
  return made;
}

}  // namespace

void fp8_forward(const Ops& ops, const at::Tensor& out_NO, Fp8Matrix& x8, const at::Tensor& x_NI,
                 const at::Tensor& weight_OI) {
  if (x_NI.size(0) == 0) return;
  if (!x8.rows_RC.defined()) x8 = ops.to_fp8(x_NI, Fp8Format::e4m3, Fp8Sides::rows);
  const auto weight8 = weight_in_fp8(ops, weight_OI, Fp8Sides::rows);
  auto out = out_NO;
  ops.fp8_product(out, {x8.rows_RC, x8.inverse}, {weight8.rows_RC, weight8.inverse}, Fp8Sums::fast, false);
}

Fp8Matrix fp8_backward(const Ops& ops, at::Tensor& grad_x_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI,
                       bool keep) {
  if (grad_NO.size(0) == 0) {
    if (!grad_x_NI.defined()) grad_x_NI = at::empty({0, weight_OI.size(1)}, grad_NO.options());
    return {};
  }
  auto grad8 = ops.to_fp8(grad_NO, Fp8Format::e5m2, keep ? Fp8Sides::both : Fp8Sides::rows);
  const auto weight8 = weight_in_fp8(ops, weight_OI, Fp8Sides::columns);
  const bool add = grad_x_NI.defined();
  if (!add) grad_x_NI = at::empty({grad_NO.size(0), weight_OI.size(1)}, grad_NO.options());
  ops.fp8_product(grad_x_NI, {grad8.rows_RC, grad8.inverse}, {weight8.columns_CR, weight8.inverse}, Fp8Sums::exact,
                  add);
  grad8.rows_RC.reset();
  return grad8;
}

void fp8_weight_grad(const Ops& ops, GradSlot& slot, const Fp8Matrix& grad8, Fp8Matrix& x8, const at::Tensor& x_NI) {
  if (x_NI.size(0) == 0) return Ops::finish(slot);
  if (!x8.columns_CR.defined()) x8 = ops.to_fp8(x_NI, Fp8Format::e4m3, Fp8Sides::columns);
  ops.fp8_product(slot.grad, {grad8.columns_CR, grad8.inverse}, {x8.columns_CR, x8.inverse}, Fp8Sums::exact,
                  slot.written);
  slot.written = true;
}

}  // namespace fsdp::detail
