// Products with weights, and with low-rank adapters.
#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

std::string Ops::gemm_description(at::ScalarType dtype) const {
  const bool exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
  if (dtype == at::kFloat && !exact) return "float32 in TF32";
  return dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bf16 natively" : "fp16 natively";
}

at::Tensor Ops::linear(const at::Tensor& x_NI, const at::Tensor& weight_OI) const {
  auto out_NO = at::empty({x_NI.size(0), weight_OI.size(0)}, x_NI.options());
  linear_into(out_NO, x_NI, weight_OI);
  return out_NO;
}

void Ops::linear_into(at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI, bool add) const {
  product(out_NO, x_NI, weight_OI.t(), add);
}

void Ops::linear_biased_into(at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI,
                             const at::Tensor& bias_O) const {
  biased_product(out_NO, x_NI, weight_OI.t(), bias_O);
}

void Ops::biased_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) const {
  fill_rows(out, bias);
  product(out, a, b, true);
}

at::Tensor Ops::linear_backward(const at::Tensor& grad_NO, const at::Tensor& weight_OI) const {
  auto out_NI = at::empty({grad_NO.size(0), weight_OI.size(1)}, grad_NO.options());
  linear_backward_into(out_NI, grad_NO, weight_OI);
  return out_NI;
}

void Ops::linear_backward_into(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const {
  product(out_NI, grad_NO, weight_OI, false);
}

void Ops::linear_backward_add(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const {
  product(out_NI, grad_NO, weight_OI, true);
}

void Ops::weight_grad(GradSlot* slot, const at::Tensor& grad_NO, const at::Tensor& x_NI) const {
  if (slot == nullptr) return;
  const auto grad_ON = grad_NO.t();
  if (slot->grad.scalar_type() == grad_NO.scalar_type()) {
    product(slot->grad, grad_ON, x_NI, slot->written);
    slot->written = true;
    return;
  }
  if (slot->grad.scalar_type() == at::kFloat && wide_product(slot->grad, grad_ON, x_NI, slot->written)) {
    slot->written = true;
    return;
  }
  auto sum_OI = at::empty({grad_ON.size(0), x_NI.size(1)}, x_NI.options());
  product(sum_OI, grad_ON, x_NI, false);
  accumulate(slot, sum_OI);
}

at::Tensor Ops::blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                double alpha) const {
  return at::addmm(x, a, b, beta, alpha);
}

bool Ops::wide_product(at::Tensor&, const at::Tensor&, const at::Tensor&, bool) const { return false; }

void Ops::accumulate(GradSlot* slot, const at::Tensor& values) const {
  if (slot == nullptr) return;
  auto& grad = slot->grad;
  const auto shaped = values.view(grad.sizes());
  if (!slot->written) {
    grad.copy_(shaped);
  } else if (grad.scalar_type() == shaped.scalar_type()) {
    grad.add_(shaped);
  } else {
    add_converted(grad, shaped);
  }
  slot->written = true;
}

void Ops::finish(GradSlot& slot) {
  if (!slot.written) slot.grad.zero_();
  slot.written = true;
}

at::Tensor Ops::lora_down(const at::Tensor& x_NI, const at::Tensor& m_IR, double scale) const {
  const auto wide_NI = x_NI.to(at::kFloat);
  auto out_NR = at::empty({x_NI.size(0), m_IR.size(1)}, wide_NI.options());
  product(out_NR, wide_NI, m_IR, false);
  return out_NR.mul_(scale);
}

void Ops::lora_up(at::Tensor& out_NO, const at::Tensor& h_NR, const at::Tensor& m_RO) const {
  if (out_NO.scalar_type() == at::kFloat) return product(out_NO, h_NR, m_RO, true);
  const MemoryScope scope(MemoryCategory::workspace);
  auto update_NO = at::empty(out_NO.sizes(), h_NR.options());
  product(update_NO, h_NR, m_RO, false);
  add_converted(out_NO, update_NO);
}

at::Tensor Ops::lora_row_norms(const at::Tensor& weight_OI, const at::Tensor& b_OR, const at::Tensor& a_RI,
                               double scale) const {
  constexpr std::int64_t kRows = 1024;
  const MemoryScope scope(MemoryCategory::workspace);
  const auto rows = weight_OI.size(0);
  auto norms_O = at::empty({rows}, b_OR.options());
  const auto scaled_OR = b_OR.mul(scale);
  repeat((rows + kRows - 1) / kRows, [&](std::int64_t chunk) {
    const auto first = chunk * kRows, count = std::min(kRows, rows - first);
    auto sum = weight_OI.narrow(0, first, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    product(sum, scaled_OR.narrow(0, first, count), a_RI, true);
    norms_O.narrow(0, first, count).copy_(sum.square_().sum(1).sqrt_());
  });
  return norms_O;
}

}  // namespace fsdp
